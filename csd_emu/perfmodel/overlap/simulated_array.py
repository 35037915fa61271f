"""Array of the simulation: drives and host of one model, each with what it computes and its side of the link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from csd_emu.perfmodel.overlap.layer_work import Costs
from csd_emu.perfmodel.overlap.simulated_link import OwnLink
from csd_emu.perfmodel.overlap.split_exchange import SplitExchange
from firmware_agent.common.errors import ConfigurationError

Member = tuple[Costs, OwnLink, tuple[int, int]]


@dataclass(frozen=True)
class SimulatedArray:
    """Who takes part in simulated steps.

    Attributes:
        costs: one per drive, of one model: the same tensors in the same layers.
        own: what each drive's own side adds to the link; empty for nothing.
        host: what the host computes if it trains too: a participant whose gradients and parameters cross no link.
        turn: of a model of which the drives have the first layers, those of `costs`; None for whole models.
    """

    costs: Sequence[Costs]
    own: Sequence[OwnLink] = ()
    host: Costs | None = None
    turn: SplitExchange | None = None

    def __post_init__(self) -> None:
        """Refuse no drive or layer, models that differ, and links and crossings that are not one for each drive."""
        drives = len(self.costs)
        if self.own and len(self.own) != drives:
            raise ConfigurationError(f"{len(self.own)} own links for {drives} drives; give each drive one")
        if len(self._crossing) != drives:
            raise ConfigurationError(f"{len(self._crossing)} crossings for {drives} drives; give each drive one")
        if not self.costs or not self.costs[0]:
            raise ConfigurationError("a simulation needs a drive and a model with a layer")
        shape = [layer.tensors for layer in self.costs[0]]
        if any([layer.tensors for layer in part] != shape for part in (*self.costs, self.host or self.costs[0])):
            raise ConfigurationError("the drives' models differ in their layers or tensors; all train the same one")

    @property
    def members(self) -> list[Member]:
        """What each drive computes, its own side of the link, and the (push, pull) bytes that cross a cut."""
        return list(zip(self.costs, self.own or [OwnLink()] * len(self.costs), self._crossing, strict=True))

    @property
    def _crossing(self) -> list[tuple[int, int]]:
        if self.turn is None:
            return [(0, 0)] * len(self.costs)
        return list(zip(self.turn.push_bytes, self.turn.pull_bytes, strict=False))


def group_members(members: Sequence[Member], merge: bool) -> tuple[list[Member], list[int], tuple[int, ...]]:
    """Return the unlike drives, how many of each there are, and which of them each drive is; if not to merge, all."""
    if not merge:
        return list(members), [1] * len(members), tuple(range(len(members)))
    unlike: dict[Member, int] = {}
    # Drives that do the same often have their costs in common, and to look at an object again takes long.
    seen: dict[tuple[int, OwnLink, tuple[int, int]], int] = {}
    for part, side, crossing in members:
        if (key := (id(part), side, crossing)) not in seen:
            seen[key] = unlike.setdefault((part, side, crossing), len(unlike))
    groups = tuple(seen[id(part), side, crossing] for part, side, crossing in members)
    return list(unlike), [groups.count(group) for group in range(len(unlike))], groups

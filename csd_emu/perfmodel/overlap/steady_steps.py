"""Steps of equal settings over a link that stays as it is: what `event_simulation` says, sooner.

There, everything that happens anywhere is one event after the other. Here each part of a step is worked out as a whole,
since it hangs on nothing but the part before:

* every drive's backward pass, from when it begins;
* all gradients on their way to the host, from when they are offered (`csd_emu.perfmodel.overlap.flow`);
* what the host steps, from when they have arrived; all parameters on their way to the drives;
* every drive's forward pass, from when it begins and its parameters have come;
* of a model that is cut, the activations behind these, the host's part, and the gradients back.

That is so, because no drive ends a forward pass before all drives' gradients have come to the host; so there is never
anything of two steps under way in one direction, and what has been sent is known to be read before any more is. A test
holds that both say the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

from csd_emu.perfmodel.overlap.flow import Arrival, LinkFlow, Offer
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.stepped_ranges import BlockStepping, HostBlocks
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.send_queue import TransferSettings


@dataclass(frozen=True)
class Passes:
    """What a drive computes in a step: (layers,) seconds of the forward and of the backward pass of each layer."""

    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]

    def end_backward(self, begin_seconds: float) -> list[float]:
        """Return when the pass has begun and when each layer's has ended, from the last layer to the first."""
        return list(accumulate(self.backward_seconds[::-1], initial=begin_seconds))

    def end_forward(self, begin_seconds: float, there: Sequence[float]) -> float:
        """Return when the pass ends; `there` is when each layer's parameters have come."""
        now = begin_seconds
        for seconds, come in zip(self.forward_seconds, there, strict=True):
            now = (come if come > now else now) + seconds
        return now


@dataclass(frozen=True)
class DriveKind:
    """Drives that do the same.

    Attributes:
        drives: how many there are.
        passes: what each computes.
        own: what its own side adds to the link.
        push_bytes, pull_bytes: activations and labels that cross the cut, and the gradient of the activations.
    """

    drives: int
    passes: Passes
    own: OwnLink
    push_bytes: int = 0
    pull_bytes: int = 0


@dataclass(frozen=True)
class ExchangeModel:
    """What is exchanged, and how.

    Attributes:
        sizes: of each layer, of each of its tensors, bytes.
        sending: how the queues send.
        stepping: how the host steps.
    """

    sizes: tuple[tuple[int, ...], ...]
    sending: TransferSettings
    stepping: BlockStepping


class Phases:
    """Steps one after the other; to be asked for steps, or from turn to turn, as a `Simulation` is."""

    def __init__(
        self,
        kinds: Sequence[DriveKind],
        link: SharedLink,
        exchange: ExchangeModel,
        *,
        local: Passes | None = None,
        turn_seconds: float = 0.0,
    ) -> None:
        """Begin at 0, with all parameters there.

        Args:
            kinds: of drives, of one model.
            link: the host's side of it.
            exchange: what is exchanged.
            local: what the host computes if it trains too.
            turn_seconds: of the host's part behind the cut.

        Raises:
            ConfigurationError: the link serves in turns; there, drives of one kind do not do the same.
        """
        if link.turn_bytes:
            raise ConfigurationError("a link that serves in turns is simulated event by event: take Simulation for it")
        self._kinds, self._turn_seconds = kinds, turn_seconds
        self._passes = [*(kind.passes for kind in kinds), *([] if local is None else [local])]
        self._exchanging = _Exchanging(kinds, link, exchange, local is not None)
        self._crossing = LinkFlow([kind.drives for kind in kinds], [kind.own for kind in kinds], link, exchange.sending)
        self._begun = [0.0] * len(self._passes)
        self._there = [[-math.inf] * len(exchange.sizes)] * len(self._passes)
        self._forward_ends: list[float] | None = None
        self._turned_seconds: float | None = None

    def step(self) -> float:
        """Go on until all have begun the next step; return the seconds since they had begun this one."""
        before = max(self._begun)
        self._go_back(self._go_forth())
        return max(self._begun) - before

    def skip_forward(self) -> None:
        """Begin with the end of the first forward passes."""
        self._forward_ends = self._begun

    def turn(self) -> float:
        """Go on until the host has computed behind the cut once more; return when. To be asked instead of `step`."""
        if self._turned_seconds is not None:
            self._go_back(self._come_back(self._turned_seconds))
        ends = self._forward_ends or self._go_forth()
        self._forward_ends = None
        up = [[(end, 0, 0, kind.push_bytes)] for end, kind in zip(ends, self._kinds, strict=False)]
        arrived = [arrival[0] for arrival in self._crossing.carry(up)]
        self._turned_seconds = max(*arrived, *ends) + self._turn_seconds
        return self._turned_seconds

    def _come_back(self, turned: float) -> list[float]:
        """Return when each has the gradient of its activations, the last piece of it; the host's own part at once."""
        begins = [turned] * len(self._passes)
        down = [[(turned, 0, 0, kind.pull_bytes)] for kind in self._kinds]
        for seconds, _, _, group, _, _ in self._crossing.carry(down):
            begins[group] = seconds
        return begins

    def _go_forth(self) -> list[float]:
        """Return when each forward pass ends."""
        each = zip(self._passes, self._begun, self._there, strict=True)
        return [passes.end_forward(begun, there) for passes, begun, there in each]

    def _go_back(self, begins: Sequence[float]) -> None:
        """Take the backward passes that begin then, and all that is exchanged behind them."""
        ends = [passes.end_backward(begin) for passes, begin in zip(self._passes, begins, strict=True)]
        self._begun = [each[-1] for each in ends]
        self._there = self._exchanging.exchange(ends)


class _Exchanging:
    """Gradients to the host, parameters back."""

    def __init__(self, kinds: Sequence[DriveKind], link: SharedLink, exchange: ExchangeModel, trains: bool) -> None:
        """See `Phases`; `trains`: the host computes too, as the last group."""
        self._groups, self._trains, self._layers = len(kinds), trains, len(exchange.sizes)
        sizes = [size for layer in exchange.sizes for size in layer]
        self._host = HostBlocks(sizes, len(kinds) + trains, exchange.stepping)
        self._whole = exchange.sending.schedule == "fifo"
        self._layer_of = [layer for layer, tensors in enumerate(exchange.sizes) for _ in tensors]
        # (layers whose backward passes come before and with it, order, bytes), as they are offered.
        behind = [(self._layers - layer, order, sizes[order]) for order, layer in enumerate(self._layer_of)]
        self._gradients = behind[::-1]
        # Parameters are offered to all at once: drives that differ by what they compute alone get them together.
        drives = Counter[OwnLink]()
        for kind in kinds:
            drives[kind.own] += kind.drives
        place = {own: number for number, own in enumerate(drives)}
        self._sides = [place[kind.own] for kind in kinds]
        self._up = LinkFlow([kind.drives for kind in kinds], [kind.own for kind in kinds], link, exchange.sending)
        self._down = LinkFlow(list(drives.values()), list(drives), link, exchange.sending)

    def exchange(self, ends: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return when each layer's new parameters have come, to each group; `ends` as from `Passes.end_backward`."""
        offers = [[(each[at], order, 0, size) for at, order, size in self._gradients] for each in ends]
        stepped = self._step(self._up.carry(offers[: self._groups]), offers[self._groups :])
        sides = max(self._sides) + 1
        there = [[-math.inf] * self._layers for _ in range(sides + 1)]
        for seconds, _, _, side, order, _ in self._down.carry([stepped] * sides):
            there[side][self._layer_of[order]] = seconds
        for seconds, order, _, _ in stepped:
            there[-1][self._layer_of[order]] = seconds
        return [there[side] for side in self._sides] + there[-1:] * self._trains

    def _step(self, arrived: Sequence[Arrival], local: Sequence[Sequence[Offer]]) -> list[Offer]:
        """Return what the host has stepped, as it is offered to all."""
        taken = [(seconds, group, order, size) for seconds, _, _, group, order, size in arrived]
        taken += [(seconds, self._groups, order, end) for own in local for seconds, order, _, end in own]
        if local:
            taken.sort(key=itemgetter(0))  # stable: at the same moment what has arrived comes first
        for seconds, group, order, size in taken:
            self._host.take(group, 0, order, size, self._whole, seconds)
        return [(each.ready_seconds, each.order, each.start, each.end) for each in self._host.advance(math.inf)]

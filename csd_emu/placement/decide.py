"""Where a model is cut: the best of the cuts that fit, "nothing moved" among them, and why.

**Which layers may move.** Late ones that are heavy on the wire and light in arithmetic: the host's share of the
exchanged bytes is at least `HEAVY` times its share of the computing, and the cut saves bytes. This is the rule of Park
et al. (RALP, algorithms section 4 of the design notes) with a number of ours. Without it a few drives, each a fifteenth
of the host, would best hand over next to everything: their first activations, which are close to the records, and all
the arithmetic. Whoever wants that can ask for a layer by name, or have the host train. If nothing else fits into the
memory that there is, any cut may be made.

**For the wire's sake alone.** Of these only such cuts are made unasked as would win by relieving the wire: with a host
that computes the moved layers of all drives' records no sooner than the slowest drive would its own. So where computing
dominates the wire nothing moves, however fast the host is: that is the reason for which drives train at all.

**What is not worth a cut.** A cut shows activations and labels to the host. One that wins less than `MARGIN` is not
made.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from csd_emu.placement.amounts import Amounts
from csd_emu.placement.barrier import barrier_seconds
from csd_emu.placement.costs import HostPlace, Situation
from csd_emu.placement.overlapped import bounds, find_best, simulate_cut
from firmware_agent.errors import ConfigurationError
from firmware_agent.units import format_bytes

# The linear layers of AlexNet have 11.7 times as large a share of its bytes as of its arithmetic, those of VGG-16 over
# 100 times, that of ResNet-50 160 times; most convolutions and what is behind them 5 times and less.
HEAVY = 9.0
# Share of a step that a cut must win at least. So little is within what a measured layer is uncertain by.
MARGIN = 0.01


@dataclass(frozen=True)
class CutRow:
    """One cut.

    Attributes:
        layer: the host's first one; None with nothing moved.
        drive_layers: how many the drives keep.
        step_seconds: of the array; None if it was not worked out, for it cannot be the best, or cannot be at all.
        at_least_seconds: no step with this cut is shorter; None if there can be none.
        drive_seconds: what the slowest drive reads and computes.
        host_seconds: forward and backward pass of the host's layers, for the records of all.
        traffic_bytes: over the host's side of the link in a step, both ways, all drives.
        moved_parameters: share of the model's exchanged bytes that the host keeps.
        moved_compute: share of the model's arithmetic that the host has.
        drive_memory_bytes: that the drive which needs most needs at least, computing in parts if it may.
        host_memory_bytes: that the tail needs.
        heavy: whether what moves is heavy enough on the wire, and saves bytes there, to be moved unasked.
        relieves: whether it would win with a host that is no faster than a drive: by relieving the wire. Known of cuts
            that are heavy, where there is a choice; true of nothing moved, else false.
        refused: why there can be no such cut; empty if there can.
    """

    layer: str | None
    drive_layers: int
    step_seconds: float | None
    at_least_seconds: float | None
    drive_seconds: float
    host_seconds: float
    traffic_bytes: float
    moved_parameters: float
    moved_compute: float
    drive_memory_bytes: float
    host_memory_bytes: float
    heavy: bool
    relieves: bool
    refused: str = ""


@dataclass(frozen=True)
class Decision:
    """Where the model is cut.

    Attributes:
        layer: the host's first one; None: every layer stays on the drives.
        drive_layers: how many the drives keep.
        step_seconds: predicted, with this cut.
        unmoved_seconds: predicted with nothing moved; None if that does not fit.
        reason: in a sentence.
        notes: what else must be known, in sentences.
        overlapped: whether the exchange overlaps what drives compute, at least with nothing moved.
        rows: every cut, from the latest to the earliest; the first one moves nothing.
    """

    layer: str | None
    drive_layers: int
    step_seconds: float
    unmoved_seconds: float | None
    reason: str
    notes: tuple[str, ...]
    overlapped: bool
    rows: tuple[CutRow, ...]

    @property
    def gain(self) -> float | None:
        """How many times as long a step is with nothing moved."""
        return None if self.unmoved_seconds is None else self.unmoved_seconds / self.step_seconds

    @property
    def row(self) -> CutRow:
        """The chosen cut."""
        return next(row for row in self.rows if row.drive_layers == self.drive_layers)


def decide(situation: Situation, *, heavy: float = HEAVY) -> Decision:
    """Return the best cut that fits; of cuts that are as good the one that moves least.

    Args:
        situation: model, devices, link and schedule.
        heavy: how many times the host's share of the bytes must be its share of the computing; 0 lets any layer move,
            for the host's speed alone too.

    Raises:
        ConfigurationError: no cut fits into the memory that there is.
    """
    table = _Table(situation, heavy)
    fitting = [cut for cut in range(1, table.unmoved + 1) if not table.refused[cut]]
    if not fitting:
        raise ConfigurationError(_nothing_fits(table))
    allowed = table.allow(fitting)
    seconds = table.search(allowed)
    best = min((cut for cut in seconds if cut in allowed), key=lambda cut: (seconds[cut], -cut))
    unmoved = seconds.get(table.unmoved)
    chosen = table.unmoved if unmoved is not None and unmoved <= (1 + MARGIN) * seconds[best] else best
    return table.decision(chosen, seconds, _why(table, chosen, best, seconds))


def decide_for(situation: Situation, layer: str | None) -> Decision:
    """Return the decision for a cut that somebody asks for, None for nothing moved; only this and none are worked out.

    Raises:
        ConfigurationError: the model has no such layer, cannot be cut there, or the cut does not fit into memory.
    """
    table = _Table(situation, 0.0)
    cut = table.unmoved if layer is None else _find(situation, layer)
    if table.refused[cut]:
        raise ConfigurationError(
            f"placement: {layer or 'none'}: {table.refused[cut]}; csd-emu plan --placement shows what fits"
        )
    known = [each for each in (cut, table.unmoved) if not table.refused[each]]
    return table.decision(cut, table.work_out(known), "it was asked for")


class _Table:
    """What is known of a situation's cuts; the cut 0 is there to be skipped."""

    def __init__(self, situation: Situation, heavy: float) -> None:
        self.situation, self.amounts = situation, Amounts(situation)
        self.unmoved = self.amounts.unmoved
        traffic = self.amounts.traffic_bytes
        self.heavy = (self.amounts.heaviness >= heavy) & ((traffic < traffic[-1]) | (heavy <= 0))
        self.heavy[self.unmoved] = True
        self._any = heavy <= 0
        self.relieving = {self.unmoved}
        self.refused = tuple(self._refused(cut) for cut in range(self.unmoved + 1))
        self._lowest = bounds(situation, self.amounts)
        self._overlapped = situation.sending is not None
        self._simulated = self._overlapped and situation.cut_overlaps
        self._barrier = barrier_seconds(situation, self.amounts)

    def allow(self, fitting: Sequence[int]) -> Sequence[int]:
        """Return which of the cuts that fit may be made unasked: all of them if no other does."""
        heavy = [cut for cut in fitting if self.heavy[cut]] or fitting
        if self._any or self.unmoved not in heavy:
            return heavy
        even = _Table(replace(self.situation, host=self._even_host()), 0.0)
        whole = self._seconds(self.unmoved)
        self.relieving.update(cut for cut in heavy if cut != self.unmoved and even.beats(cut, whole))
        return [cut for cut in heavy if cut in self.relieving]

    def beats(self, cut: int, seconds: float) -> bool:
        """Return whether a step with this cut is shorter by what a cut must win."""
        if (1 + MARGIN) * self._lowest[cut] >= seconds:
            return False
        return (1 + MARGIN) * self._seconds(cut) < seconds

    def _even_host(self) -> HostPlace:
        """Return a host that takes as long for all drives' records as the slowest drive does for its own."""
        forward, backward = self.amounts.forward_seconds[:, -1], self.amounts.backward_seconds[:, -1]
        slowest = int(np.argmax(forward + backward))
        shares = self.situation.drives[slowest].layer_shares
        return HostPlace(float(forward[slowest]), float(backward[slowest]), layer_shares=shares)

    def search(self, allowed: Sequence[int]) -> dict[int, float]:
        """Return the seconds of cuts, the best one's of those that are allowed among them, and of nothing moved."""
        if not self._simulated:  # all of them are known
            return self.work_out([cut for cut in range(1, self.unmoved + 1) if not self.refused[cut]])
        known = self.work_out([cut for cut in allowed if cut == self.unmoved])
        return find_best(self._seconds, self._lowest, allowed, known)

    def work_out(self, cuts: Collection[int]) -> dict[int, float]:
        """Return the seconds of these cuts."""
        return {cut: self._seconds(cut) for cut in cuts}

    def decision(self, chosen: int, seconds: Mapping[int, float], reason: str) -> Decision:
        """Return the decision for a cut."""
        return Decision(
            layer=self.layer(chosen),
            drive_layers=chosen,
            step_seconds=seconds[chosen],
            unmoved_seconds=seconds.get(self.unmoved),
            reason=reason,
            notes=tuple(self._notes(chosen, seconds)),
            overlapped=self._overlapped,
            rows=tuple(self._row(cut, seconds) for cut in range(self.unmoved, 0, -1)),
        )

    def layer(self, cut: int) -> str | None:
        """Return the name of a cut."""
        return None if cut == self.unmoved else self.situation.layers[cut].name

    def _notes(self, chosen: int, seconds: Mapping[int, float]) -> list[str]:
        notes = []
        fastest = min(seconds, key=lambda cut: (seconds[cut], -cut))
        if fastest != chosen and seconds[chosen] > (1 + MARGIN) * seconds[fastest]:
            notes.append(
                f"a cut before {self.layer(fastest)} would take {seconds[fastest]:.4g} s a step, with "
                f"{self.amounts.moved_compute[fastest]:.0%} of the arithmetic on the host; such a cut is made only if "
                "its layer is asked for by name"
            )
        if not self.heavy[chosen]:
            notes.append(
                f"{self.amounts.moved_compute[chosen]:.0%} of the arithmetic moves for "
                f"{self.amounts.moved_parameters[chosen]:.0%} of the bytes: the host is busy with it"
            )
        if chosen != self.unmoved:
            notes.append("activations and labels of every record leave the drives (docs/placement.md)")
        return notes

    def _seconds(self, cut: int) -> float:
        if self._simulated or (self._overlapped and cut == self.unmoved):
            return simulate_cut(self.situation, cut, self.amounts)
        return float(self._barrier[cut])

    def _refused(self, cut: int) -> str:
        """Return why there can be no such cut, the graph's reason first."""
        if cut == 0:
            return "raw records would leave the drives"
        if math.isnan(self.amounts.crossing_bytes[cut]):
            return f"the model cannot be cut there: {self.situation.layers[cut].reason or 'nobody says why'}"
        for drive, needed in zip(self.situation.drives, self.amounts.drive_memory_bytes[:, cut], strict=True):
            if drive.memory is not None and needed > drive.memory.available_bytes:
                return (
                    f"{drive.device} needs {format_bytes(needed)} of memory, with {drive.memory.least_records} of its "
                    f"records at a time, and has {format_bytes(max(0.0, drive.memory.available_bytes))}"
                )
        memory, needed_bytes = self.situation.host.memory, self.amounts.host_memory_bytes[cut]
        if memory is not None and needed_bytes > memory.available_bytes:
            return (
                f"the host needs {format_bytes(needed_bytes)} of memory for {self.situation.records} records and has "
                f"{format_bytes(max(0.0, memory.available_bytes))}"
            )
        return ""

    def _row(self, cut: int, seconds: Mapping[int, float]) -> CutRow:
        amounts, refused = self.amounts, self.refused[cut]
        return CutRow(
            layer=self.layer(cut),
            drive_layers=cut,
            step_seconds=seconds.get(cut),
            at_least_seconds=None if refused else float(self._lowest[cut]),
            drive_seconds=float(np.nan_to_num(amounts.compute_seconds[:, cut].max())),
            host_seconds=float(amounts.host_seconds[cut]),
            traffic_bytes=float(np.nan_to_num(amounts.traffic_bytes[cut])),
            moved_parameters=float(amounts.moved_parameters[cut]),
            moved_compute=float(amounts.moved_compute[cut]),
            drive_memory_bytes=float(amounts.drive_memory_bytes[:, cut].max()),
            host_memory_bytes=float(amounts.host_memory_bytes[cut]),
            heavy=bool(self.heavy[cut]),
            relieves=cut in self.relieving,
            refused=refused,
        )


def _why(table: _Table, chosen: int, best: int, seconds: Mapping[int, float]) -> str:
    if chosen == table.unmoved:
        if best == table.unmoved:
            return "no cut saves the wire more than it costs"
        gain = seconds[chosen] / seconds[best] - 1
        return f"the best cut would win {gain:.2%} of a step, less than the {MARGIN:.0%} that it must"
    if table.unmoved not in seconds:
        return f"nothing moved does not fit: {table.refused[table.unmoved]}"
    return f"{seconds[chosen]:.4g} s a step, {seconds[table.unmoved]:.4g} s with nothing moved"


def _nothing_fits(table: _Table) -> str:
    cut = next((cut for cut in range(1, table.unmoved) if not math.isnan(table.amounts.crossing_bytes[cut])), 0)
    least = f", and before {table.layer(cut)!r}: {table.refused[cut]}" if cut else ""
    return (
        f"placement: no cut fits. With nothing moved: {table.refused[table.unmoved]}{least}; take smaller batches, or "
        "give the drives more memory (memory in the array file)"
    )


def _find(situation: Situation, layer: str) -> int:
    names = [each.name for each in situation.layers]
    if layer == names[0]:
        raise ConfigurationError(
            f"placement: {layer!r} is the model's first layer: before it lie only the records, and none of them "
            "leaves its drive; cut at a later layer, or choose none"
        )
    if layer not in names:
        near = difflib.get_close_matches(layer, names[1:], n=3, cutoff=0.3) or names[1:4]
        raise ConfigurationError(
            f"placement: the model has no layer {layer!r}; nearest: {', '.join(map(repr, near)) or 'none'}. "
            "csd-emu plan --placement lists them all"
        )
    return names.index(layer)

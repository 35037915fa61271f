"""Where a model is cut: the best of all cuts that fit, "nothing moved" among them, and why.

**What counts as better.** Placement relieves the wire. A host is worth a dozen drives and more, so with few drives it
would be fastest to have the host compute nearly all; but then the drives hand over next to raw records, and a host that
is to compute can do so as a participant of its own. So what the host's speed alone would win does not count: a cut is
judged by its step's seconds and, where the host is sooner done with the tail of all records than the slowest drive with
that of its own, by the difference on top (`Amounts.relief_seconds`). Both are in the table; `count_host_speed` judges by
the step's seconds alone.

**What is not worth a cut.** A cut shows the host activations and labels. One that wins less than `MARGIN` is not made.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from csd_emu.placement.amounts import Amounts
from csd_emu.placement.barrier import barrier_seconds
from csd_emu.placement.costs import Floats, Situation
from csd_emu.placement.overlapped import bounds, compute_seconds, find_best, simulate_cut
from firmware_agent.errors import ConfigurationError
from firmware_agent.units import format_bytes

# Share of a step that a cut must win at least. So little is within what a measured layer is uncertain by.
MARGIN = 0.005


@dataclass(frozen=True)
class CutRow:
    """One cut.

    Attributes:
        layer: the host's first one; None with nothing moved.
        drive_layers: how many the drives keep.
        step_seconds: of the array; None if it was not worked out, for it cannot be the best, or cannot be at all.
        judged_seconds: what it is judged by; not below `step_seconds`.
        at_least_seconds: no step with this cut is judged to be shorter; None if there can be none.
        drive_seconds: what the slowest drive reads and computes.
        host_seconds: forward and backward pass of the host's layers, for the records of all.
        traffic_bytes: over the host's side of the link in a step, both ways, all drives.
        moved_parameters: share of the model's exchanged bytes that the host keeps.
        moved_compute: share of the model's arithmetic that the host has.
        drive_memory_bytes: of the drive that needs most of what it has.
        host_memory_bytes: that the tail needs.
        refused: why there can be no such cut; empty if there can.
    """

    layer: str | None
    drive_layers: int
    step_seconds: float | None
    judged_seconds: float | None
    at_least_seconds: float | None
    drive_seconds: float
    host_seconds: float
    traffic_bytes: float
    moved_parameters: float
    moved_compute: float
    drive_memory_bytes: float
    host_memory_bytes: float
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
        overlapped: whether the exchange overlaps what drives compute.
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
        return next(row for row in self.rows if row.layer == self.layer)


def decide(situation: Situation, *, count_host_speed: bool = False) -> Decision:
    """Return the best cut that fits.

    Of cuts that are judged alike the one that moves least is taken.

    Args:
        situation: model, devices, link and schedule.
        count_host_speed: whether what the host's speed alone wins counts.

    Raises:
        ConfigurationError: no cut fits into the memory that there is.
    """
    table = _Table(situation, count_host_speed)
    fitting = [cut for cut in range(1, table.unmoved + 1) if not table.refused[cut]]
    if not fitting:
        raise ConfigurationError(_nothing_fits(table))
    judged = table.search(fitting)
    best = min(judged, key=lambda cut: (judged[cut], -cut))
    unmoved = judged.get(table.unmoved)
    chosen = table.unmoved if unmoved is not None and unmoved <= (1 + MARGIN) * judged[best] else best
    return table.decision(chosen, judged, _why(table, chosen, best, judged))


def decide_for(situation: Situation, layer: str | None) -> Decision:
    """Return the decision for a cut that somebody asks for, None for nothing moved; only this and none are worked out.

    Raises:
        ConfigurationError: the model has no such layer, cannot be cut there, or the cut does not fit into memory.
    """
    table = _Table(situation, False)
    cut = table.unmoved if layer is None else _find(situation, layer)
    if table.refused[cut]:
        raise ConfigurationError(
            f"placement: {layer or 'none'}: {table.refused[cut]}; csd-emu plan --placement shows what fits"
        )
    known = {each for each in (cut, table.unmoved) if not table.refused[each]}
    return table.decision(cut, table.work_out(known), "it was asked for")


def fits(situation: Situation) -> tuple[str, ...]:
    """Return (cuts,) why each cut cannot be, empty where it can: the graph, a drive's memory, the host's."""
    return _Table(situation, False).refused


class _Table:
    """What is known of a situation's cuts; the cut 0 is there to be skipped."""

    def __init__(self, situation: Situation, count_host_speed: bool) -> None:
        self.situation, self.amounts = situation, Amounts(situation)
        self.unmoved = self.amounts.unmoved
        relief = self.amounts.relief_seconds
        self._relief: Floats = np.zeros(len(relief)) if count_host_speed else relief
        self._drive_memory = [self.amounts.drive_memory_bytes(drive) for drive in situation.drives]
        self.refused = tuple(self._refused(cut) for cut in range(self.unmoved + 1))
        self._lowest = bounds(situation, self.amounts) + self._relief
        self._barrier = None if situation.sending is not None else barrier_seconds(situation, self.amounts)

    def search(self, fitting: list[int]) -> dict[int, float]:
        """Return what cuts are judged by, the best one's among them, and that of nothing moved if it fits."""
        if self._barrier is not None:
            return self.work_out(set(fitting))
        known = self.work_out({self.unmoved} & set(fitting))
        return find_best(self._judge, self._lowest, fitting, known)

    def work_out(self, cuts: set[int]) -> dict[int, float]:
        """Return what these cuts are judged by."""
        return {cut: self._judge(cut) for cut in sorted(cuts, reverse=True)}

    def decision(self, chosen: int, judged: Mapping[int, float], reason: str) -> Decision:
        """Return the decision for a cut."""
        unmoved = judged.get(self.unmoved)
        return Decision(
            layer=self._layer(chosen),
            drive_layers=chosen,
            step_seconds=judged[chosen] - float(self._relief[chosen]),
            unmoved_seconds=unmoved,
            reason=reason,
            notes=tuple(self._notes(chosen, judged)),
            overlapped=self._barrier is None,
            rows=tuple(self._row(cut, judged) for cut in range(self.unmoved, 0, -1)),
        )

    def shortest(self, judged: Mapping[int, float]) -> int:
        """Return the cut with the shortest step among those that were worked out."""
        return min(judged, key=lambda cut: (judged[cut] - self._relief[cut], -cut))

    def _notes(self, chosen: int, judged: Mapping[int, float]) -> list[str]:
        notes = []
        fastest = self.shortest(judged)
        own, other = (judged[cut] - float(self._relief[cut]) for cut in (chosen, fastest))
        if fastest != chosen and own > (1 + MARGIN) * other:
            share = self._moved_compute(fastest)
            notes.append(
                f"the host's own speed would make a cut before {self._layer(fastest) or 'none'} faster, {other:.4g} s a "
                f"step, with {share:.0%} of the arithmetic on the host; ask for it by name if that is what you want"
            )
        if chosen != self.unmoved:
            notes.append("activations and labels of every record leave the drives (docs/placement.md)")
        return notes

    def _judge(self, cut: int) -> float:
        seconds = simulate_cut(self.situation, cut, self.amounts) if self._barrier is None else self._barrier[cut]
        return float(seconds + self._relief[cut])

    def _layer(self, cut: int) -> str | None:
        return None if cut == self.unmoved else self.situation.layers[cut].name

    def _moved_compute(self, cut: int) -> float:
        layers = self.situation.layers
        work = [layer.forward_operations + layer.backward_operations for layer in layers]
        return sum(work[cut:]) / sum(work) if sum(work) else 1 - cut / len(layers)

    def _refused(self, cut: int) -> str:
        """Return why there can be no such cut, the graph's reason first."""
        if cut == 0:
            return "raw records would leave the drives"
        if math.isnan(self.amounts.crossing_bytes[cut]):
            return f"the model cannot be cut there: {self.situation.layers[cut].reason or 'nobody says why'}"
        for drive, needed in zip(self.situation.drives, self._drive_memory, strict=True):
            if drive.memory is not None and needed[cut] > drive.memory.available_bytes:
                return (
                    f"{drive.device} needs {format_bytes(needed[cut])} of memory for {drive.batch_size} records and "
                    f"has {format_bytes(max(0.0, drive.memory.available_bytes))}"
                )
        memory, needed_bytes = self.situation.host.memory, self.amounts.host_memory_bytes[cut]
        if memory is not None and needed_bytes > memory.available_bytes:
            return (
                f"the host needs {format_bytes(needed_bytes)} of memory for {self.situation.records} records and has "
                f"{format_bytes(max(0.0, memory.available_bytes))}"
            )
        return ""

    def _row(self, cut: int, judged: Mapping[int, float]) -> CutRow:
        amounts, refused = self.amounts, self.refused[cut]
        own = judged.get(cut)
        pushed = amounts.push_bytes
        return CutRow(
            layer=self._layer(cut),
            drive_layers=cut,
            step_seconds=None if own is None else own - float(self._relief[cut]),
            judged_seconds=own,
            at_least_seconds=None if refused else float(self._lowest[cut]),
            drive_seconds=max(float(compute_seconds(amounts, drive)[cut]) for drive in self.situation.drives),
            host_seconds=float(amounts.host_seconds[cut]),
            traffic_bytes=_finite(amounts.traffic_bytes[cut]),
            moved_parameters=float(1 - pushed[cut] / pushed[-1]) if pushed[-1] else 0.0,
            moved_compute=self._moved_compute(cut),
            drive_memory_bytes=max(float(needed[cut]) for needed in self._drive_memory),
            host_memory_bytes=float(amounts.host_memory_bytes[cut]),
            refused=refused,
        )


def _finite(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)


def _why(table: _Table, chosen: int, best: int, judged: Mapping[int, float]) -> str:
    if chosen == table.unmoved:
        if best == table.unmoved:
            return "no cut relieves the wire by more than what it puts on it, and on the host"
        gain = judged[chosen] / judged[best] - 1
        return f"the best cut would win {gain:.2%} of a step, less than the {MARGIN:.1%} that it must"
    if table.unmoved not in judged:
        return f"nothing moved does not fit: {table.refused[table.unmoved]}"
    return f"a step is judged to take {judged[chosen]:.4g} s, and {judged[table.unmoved]:.4g} s with nothing moved"


def _nothing_fits(table: _Table) -> str:
    cut = next((cut for cut in range(1, table.unmoved) if not math.isnan(table.amounts.crossing_bytes[cut])), 0)
    least = f", and before {table.situation.layers[cut].name!r}: {table.refused[cut]}" if cut else ""
    return (
        f"placement: no cut fits. With nothing moved: {table.refused[table.unmoved]}{least}; take smaller batches, or "
        "give the drives more memory (memory in the array file)"
    )


def _find(situation: Situation, layer: str) -> int:
    names = [each.name for each in situation.layers]
    if layer == names[0]:
        raise ConfigurationError(
            f"placement: {layer!r} is the model's first layer: before it lie only the records, and no record leaves its "
            "drive; cut at a later layer, or choose none"
        )
    if layer not in names:
        near = difflib.get_close_matches(layer, names[1:], n=3, cutoff=0.3) or names[1:4]
        raise ConfigurationError(
            f"placement: the model has no layer {layer!r}; nearest: {', '.join(map(repr, near)) or 'none'}. "
            "csd-emu plan --placement lists them all"
        )
    return names.index(layer)

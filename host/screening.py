"""What of a drive's contribution is believed: one screen for every mode, in one order. Pure.

The order: names, shapes and dtypes (`firmware_agent.exchange.Assembler`, as slices come in), all values finite, records
and steps as dealt, seconds plausible, norm of the update or gradient against its history, loss, and the rest of the
report. The first that fails is the reason.

*Norm.* The limit is `NORM_FACTOR` times the reference: the larger of this round's lower median over the drives (of two
drives, where nobody is the majority, the larger one) and the largest such median of the rounds before. Of one or two
drives what counts are the rounds before, if three drives were in them; else all but an explosion is taken. A minority
of drives cannot move a median, and the largest one does not sink while training converges, where single hard batches
have gradients a thousand times the others'. Honest updates of drives with other labels differ by a factor of 3 or so in
norm, and by their number of local steps: whoever takes more steps than the median drive has a limit larger by that
ratio. So the limit is wide for the honest, and a contribution within it moves a mean of four drives by five times an
ordinary update at the most. All drives' norms above `EXPLODING` times the reference of the rounds before are a training
that explodes.

*Seconds.* A step takes at least `LEAST_STEP_SECONDS` on any hardware, and per record not less than 1 / `FASTER` of the
lower, and not more than `SLOWER` times the upper, median over the drives of the fastest each was seen. With fewer than
three drives on a clock nobody is the majority: each is compared with its calibration table, and is not much slower than
that or its own fastest. That is wide, for a step of milliseconds can wait for hundreds of them on a busy machine; by
whose seconds batches are chosen says `believed_seconds`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from csd_emu.timeline import HOST
from firmware_agent.exchange import Array
from firmware_agent.wire import Measure, Measured, PhaseSeconds
from host.scanning import UNLIMITED, NormLimits, Scan, first_not_finite, scan_update, squares

Floats = npt.NDArray[np.float64]

NORM_FACTOR = 20.0
EXPLODING = 1e4
# So many drives have a majority when one of them lies.
_MAJORITY = 3
# Without a history: of an update, against the weights and one.
_ABSURD = 1e6
# Of buffers, such as running statistics, against the others': they may begin far from where they belong.
_BUFFER_FACTOR = 1e3
LEAST_STEP_SECONDS = 1e-5
FASTER, SLOWER = 1e3, 1e4
# A mean cross-entropy beyond this takes logits that no training ends with; rounding may leave one just below zero.
MOST_LOSS, _LEAST_LOSS = 1e6, -1e-3
MOST_MEMORY_BYTES = 1 << 44
MOST_RECORD_BYTES = 1 << 30


class Reason(StrEnum):
    """Why a contribution was refused; a label of `csd_updates_rejected_total`."""

    NOT_FINITE = "not_finite"
    SAMPLES = "samples"
    SECONDS = "seconds"
    NORM = "norm"
    LOSS = "loss"
    REPORT = "report"
    DIRECTION = "direction"
    OTHER = "other"


@dataclass(frozen=True)
class Refusal:
    """Why a contribution is refused: what is told of it, and the tensor that it is about, if it is about one."""

    reason: Reason
    detail: str
    tensor: str = ""

    @property
    def diverging(self) -> bool:
        """Whether this is how a training that diverges looks; the drive need not be at fault."""
        return self.reason in (Reason.NOT_FINITE, Reason.NORM, Reason.LOSS)

    def told(self, where: str) -> str:
        """Return an event's detail; `where` names the round or step."""
        return f"in {where}: {self.detail} [{self.reason}]"


def reason_of(detail: str) -> Reason:
    """Return the reason in a detail that `Refusal.told` made."""
    found = re.search(r"\[(\w+)\]\Z", detail)
    return Reason(found[1]) if found and found[1] in set(Reason) else Reason.OTHER


@dataclass(frozen=True)
class Dealt:
    """What the host gave a drive to do: records, repetitions counted, and steps over them."""

    samples: int
    steps: int


def dealt_passes(records: int, epochs: int, batch_size: int) -> Dealt:
    """Return what whole passes over a shard of so many records are."""
    return Dealt(records * epochs, -(-records // batch_size) * epochs)


class Report(Protocol):
    """What a drive says of its part, besides its tensors."""

    @property
    def samples(self) -> int:
        """Records computed."""

    @property
    def loss(self) -> float:
        """Mean over them."""

    @property
    def seconds(self) -> PhaseSeconds:
        """By the drive's own clock."""

    @property
    def read_bytes(self) -> int:
        """Read from flash."""

    @property
    def peak_memory_bytes(self) -> int:
        """0 if not read."""


@dataclass(frozen=True)
class Part:
    """A drive's contribution to a round or step, as it is judged.

    Attributes:
        device: its name.
        dealt: what it was given.
        said: its report.
        steps_said: in its report; None where that has no such figure.
        scan: of its tensors; None of a probe, whose gradients are dropped.
        clock: whose seconds these are; ``modelled`` ones are not the drive's to say, and not looked at.
        table_seconds: what its calibration table says of this; None without one.
    """

    device: str
    dealt: Dealt
    said: Report
    steps_said: int | None
    scan: Scan | None
    clock: str
    table_seconds: float | None = None

    @property
    def kind(self) -> str:
        """Among whose seconds these are looked at: those of the same clock, the host's apart."""
        return f"{self.clock} ({HOST})" if self.device == HOST else self.clock

    @property
    def record_seconds(self) -> float:
        """Seconds per record dealt."""
        return self.said.seconds.total / max(1, self.dealt.samples)


@dataclass
class Screen:
    """Judges the contributions of a run, round by round or step by step, and keeps what it has accepted as history.

    Attributes:
        norm: largest median norm of a round so far; 0 before the first.
        buffer_norm: the same of buffers.
        fastest: device and clock -> least accepted seconds per record.
        devices: that the history is of.
    """

    norm: float = 0.0
    buffer_norm: float = 0.0
    fastest: dict[tuple[str, str], float] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)

    def scan(self, weights: Mapping[str, Array], start: Mapping[str, Array], buffers: Collection[str]) -> Scan:
        """Return what is judged of a drive's weights (see `scan_update`)."""
        return scan_update(weights, start, buffers)

    def weight_norm(self, weights: Mapping[str, Array]) -> float:
        """Return the norm of the weights that the drives were sent; infinite if there is a history to judge by."""
        return math.inf if self.norm else math.sqrt(sum(squares(array).total for array in weights.values()))

    def first_not_finite(self, weights: Mapping[str, Array]) -> str:
        """Return the first of a round's new weights that is not finite (see `first_not_finite`)."""
        return first_not_finite(weights)

    def judge(self, parts: Sequence[Part], weight_norm: float = math.inf) -> dict[str, Refusal]:
        """Return who is refused, and why; all others are taken into the history.

        Args:
            parts: of one round or step, one per drive.
            weight_norm: of the weights that the drives were sent; infinite if it does not matter.
        """
        refused: dict[str, Refusal] = {}
        for part in parts:
            if (why := _finite(part) or _as_dealt(part) or _some_seconds(part)) is not None:
                refused[part.device] = why
        for check in (self._check_seconds, lambda left: self._check_norms(left, weight_norm), _check_losses):
            refused |= check([part for part in parts if part.device not in refused])
        self._accept([part for part in parts if part.device not in refused])
        return refused

    @property
    def limits(self) -> NormLimits:
        """Norms that `judge` accepts whatever the others' are; infinite before there is a history of several."""
        if len(self.devices) < _MAJORITY or not self.norm:
            return UNLIMITED
        return NormLimits(NORM_FACTOR * self.norm, _BUFFER_FACTOR * self.buffer_norm)

    def state(self) -> dict[str, Any]:
        """Return what must be kept to go on as if the run had never stopped: JSON's types."""
        return {
            "norm": self.norm,
            "buffer_norm": self.buffer_norm,
            "devices": sorted(self.devices),
            "fastest": [[device, clock, seconds] for (device, clock), seconds in sorted(self.fastest.items())],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; of nothing, from nothing."""
        self.norm, self.buffer_norm = float(state.get("norm", 0.0)), float(state.get("buffer_norm", 0.0))
        self.devices = set(map(str, state.get("devices", ())))
        self.fastest = {(str(d), str(c)): float(seconds) for d, c, seconds in state.get("fastest", ())}

    def _accept(self, parts: Sequence[Part]) -> None:
        scans = _scans(parts)
        if scans:
            self.norm = max(self.norm, _median([scan.norm for scan in scans.values()]))
            self.buffer_norm = max(self.buffer_norm, _median([scan.buffer_norm for scan in scans.values()]))
        self.devices |= scans.keys()
        for part in [part for part in parts if part.dealt.samples]:
            if part.clock != "modelled":
                key = part.device, part.kind
                self.fastest[key] = min(self.fastest.get(key, math.inf), part.record_seconds)

    def _check_seconds(self, parts: Sequence[Part]) -> dict[str, Refusal]:
        said = [part for part in parts if part.clock != "modelled" and part.dealt.samples]
        found: dict[str, Refusal] = {}
        for clock in {part.kind for part in said}:
            seen = {device: seconds for (device, kind), seconds in self.fastest.items() if kind == clock}
            own = [part for part in said if part.kind == clock]
            for part in own:
                seen[part.device] = min(seen.get(part.device, math.inf), part.record_seconds)
            for part in own:
                least, most = self._usual_seconds(part, seen)
                if not least / FASTER <= part.record_seconds <= most * SLOWER:
                    usual = least if part.record_seconds < least else most
                    found[part.device] = Refusal(
                        Reason.SECONDS,
                        f"it says that a record took it {part.record_seconds:.3g} s by its {clock} clock, where "
                        f"{usual:.3g} s are usual here",
                    )
        return found

    def _usual_seconds(self, part: Part, seen: Mapping[str, float]) -> tuple[float, float]:
        """Return the seconds per record that nobody is much faster than, and that nobody is much slower than.

        Args:
            part: that is judged.
            seen: device -> least seconds per record by the same clock, this part's too.
        """
        if len(seen) >= _MAJORITY:
            ordered = sorted(seen.values())
            return ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        # Nobody is the majority. What is too fast for its table is looked at already; its own past may be one stall.
        before = self.fastest.get((part.device, part.kind), 0.0)
        table = (part.table_seconds or 0.0) / part.dealt.samples if part.clock == "counted" else 0.0
        return part.record_seconds, max(before, table) or part.record_seconds

    def _check_norms(self, parts: Sequence[Part], weight_norm: float) -> dict[str, Refusal]:
        scans, found = _scans(parts), dict[str, Refusal]()
        if not scans:
            return found
        steps = {part.device: float(part.dealt.steps) for part in parts if part.device in scans}
        now, usual_steps = _median([scan.norm for scan in scans.values()]), max(1.0, _median(list(steps.values())))
        exploding = self.norm > 0 and now > EXPLODING * self.norm
        witnessed = len(scans) < _MAJORITY <= len(self.devices)
        reference = self.norm if exploding or witnessed else max(self.norm, now)
        buffer_reference = max(self.buffer_norm, _median([scan.buffer_norm for scan in scans.values()]))
        for device, scan in scans.items():
            limit = NORM_FACTOR * reference * max(1.0, steps[device] / usual_steps)
            if (reference and scan.norm > limit) or scan.norm > _ABSURD * (1.0 + weight_norm):
                found[device] = Refusal(
                    Reason.NORM,
                    f"its update has the norm {scan.norm:.3g}, where {reference:.3g} is usual and {limit:.3g} the "
                    "most that is taken",
                )
            elif buffer_reference and scan.buffer_norm > _BUFFER_FACTOR * buffer_reference:
                found[device] = Refusal(
                    Reason.NORM,
                    f"its buffers change by {scan.buffer_norm:.3g}, where {buffer_reference:.3g} is usual",
                )
        return found


def not_finite(tensor: str) -> Refusal:
    """Return the refusal of a contribution with such a tensor."""
    return Refusal(Reason.NOT_FINITE, f"{tensor} has values that are no finite numbers", tensor)


def _finite(part: Part) -> Refusal | None:
    return not_finite(part.scan.bad) if part.scan is not None and part.scan.bad else None


def _scans(parts: Sequence[Part]) -> dict[str, Scan]:
    """Return what was seen of the tensors of those who had records."""
    return {part.device: part.scan for part in parts if part.scan is not None and part.dealt.samples}


def _as_dealt(part: Part) -> Refusal | None:
    dealt, said = part.dealt, part.said.samples
    if said != dealt.samples:
        return Refusal(Reason.SAMPLES, f"it says that it trained on {said} records; it was dealt {dealt.samples}")
    if part.steps_said not in (None, dealt.steps):
        return Refusal(Reason.SAMPLES, f"it says that it took {part.steps_said} steps; it was dealt {dealt.steps}")
    return None


def _some_seconds(part: Part) -> Refusal | None:
    total = part.said.seconds.total
    if part.clock == "modelled" or not part.dealt.samples:
        return None
    least = LEAST_STEP_SECONDS * max(1, part.dealt.steps)
    if part.table_seconds is not None and part.clock == "counted":
        least = max(least, part.table_seconds / FASTER)
    if math.isfinite(total) and total >= least:
        return None
    return Refusal(
        Reason.SECONDS,
        f"it says that {part.dealt.samples} records took it {total:g} s by its {part.clock} clock, which no drive can: "
        f"less than {least:.3g} s; if it is honest its clock stands still, so restart it",
    )


def _check_losses(parts: Sequence[Part]) -> dict[str, Refusal]:
    found: dict[str, Refusal] = {}
    for part in parts:
        said = part.said
        if not _LEAST_LOSS <= said.loss <= MOST_LOSS:  # nor if it is NaN
            found[part.device] = Refusal(Reason.LOSS, f"it reports a loss of {said.loss:g}")
        elif said.peak_memory_bytes > MOST_MEMORY_BYTES:
            found[part.device] = Refusal(
                Reason.REPORT, f"it says that it held {said.peak_memory_bytes} bytes of memory"
            )
        elif said.read_bytes > MOST_RECORD_BYTES * part.dealt.samples:
            found[part.device] = Refusal(
                Reason.REPORT, f"it says that it read {said.read_bytes} bytes for {part.dealt.samples} records"
            )
    return found


def believed_seconds(seconds: Floats, expected: Floats) -> Floats:
    """Return (devices,) seconds as batches are chosen by them: nobody much faster than both its table and the others.

    A drive that says so would have the others' batches taken away, for they make the array slow. So no ratio of seconds
    to the table's counts as less than half of one, nor of the upper median over the drives, if all are faster.

    Args:
        seconds: that the drives say; NaN for nobody.
        expected: of the same batches, by their tables.
    """
    ratios = seconds / expected
    there = np.sort(ratios[np.isfinite(ratios)])
    if not there.size:
        return seconds
    least = min(1.0, float(there[there.size // 2])) / 2
    return np.where(ratios < least, least * expected, seconds)


def screen_measured(task: Measure, said: Measured) -> str:
    """Return what cannot be in the answer to a measurement; empty if it can.

    It becomes a calibration table, or a bench's figure: there is no history of it.
    """
    steps = len(said.step_seconds)
    if said.samples != said.steps * task.batch_size or (task.steps is not None and said.steps > task.steps):
        return f"it says {said.samples} records in {said.steps} steps of {task.batch_size}"
    if task.steps is not None and steps != said.steps:
        return f"it tells the seconds of {steps} of its {said.steps} steps"
    least = LEAST_STEP_SECONDS * said.steps
    total = math.fsum(step.total for step in said.step_seconds) if steps else said.seconds.total
    if not (said.seconds.total >= least and said.elapsed_seconds >= least and total >= least):
        return f"it says that {said.steps} steps took it {total:g} s, which no drive can; restart it"
    if said.peak_memory_bytes > MOST_MEMORY_BYTES:
        return f"it says that it held {said.peak_memory_bytes} bytes of memory"
    return ""


def _median(values: Sequence[float]) -> float:
    """Return the lower median; of one or two values, which have no majority, the larger one."""
    return sorted(values)[(len(values) - 1) // 2 if len(values) >= _MAJORITY else -1]

"""Screening of drives' contributions: one screen for every mode, in one order. Pure.

The order: names, shapes and dtypes (`firmware_agent.common.slices.Assembler`, as slices come in), all values finite,
records and steps as dealt, seconds plausible, norm of the update or gradient against its history, loss, and the rest of
the report. The first that fails is the reason.

*Norm.* The limit is `NORM_FACTOR` times the reference: the larger of this round's lower median over the drives (of two
drives, where nobody is the majority, the larger one) and the largest such median of the rounds before. Of one or two
drives what counts are the rounds before, if three drives were in them; else all but an explosion is taken. A minority
of drives cannot move a median, and the largest one does not sink while training converges, where single hard batches
have gradients a thousand times the others'. Honest updates of drives with other labels differ by a factor of 3 or so in
norm, and by their number of local steps: whoever takes more steps than the median drive has a limit larger by that
ratio. So the limit is wide for the honest, and a contribution within it moves a mean of four drives by five times an
ordinary update at the most. All drives' norms above `EXPLODING` times the reference of the rounds before are a training
that explodes.

*Buffers.* Those of floating-point numbers, such as running statistics, and those of whole numbers, such as counts, are
judged apart, by their change, in the same way. Statistics begin far from where they belong: up to `_FIRST_BUFFERS`
times the others' change is taken as long as there is no history of several drives. What changes in no other drive may
change in none.

*Activations.* Of a model that is cut, each tensor that crosses is judged by its root mean square over the records
(`Screen.judge_activations`), by the same rule: one drive's would be in the gradients of all. Of one or two drives
without a history what is above `EXPLODING` times the least of them, or of those before, is refused, if it is above
`EXPLODING` at all: of two the smaller one may be the lie.

*Seconds.* A step takes at least `LEAST_STEP_SECONDS` on any hardware, and per record not less than 1 / `FASTER` of the
lower, and not more than `SLOWER` times the upper, median over the drives of the fastest each was seen. With fewer than
three drives on a clock nobody is the majority: each is compared with its calibration table, and is not much slower than
that or its own fastest. That is wide, for a step of milliseconds can wait for hundreds of them on a busy machine; by
whose seconds batches are chosen says `believed_seconds`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.frames.measure_frames import Measure, Measured
from firmware_agent.common.frames.session_frames import Trained
from firmware_agent.common.slices import Array
from host.core.tensor_sums import UNLIMITED, Norms, Scan, squares
from host.training.contributions import Reason, Refusal, ScreenedContribution, not_finite

Floats = npt.NDArray[np.float64]

NORM_FACTOR = 20.0
# Of tensors that an algorithm of the user's own returns beside weights, which may be sums over unequal shards.
EXTRA_FACTOR = 1e3
EXPLODING = 1e4
# So many drives have a majority when one of them lies.
_MAJORITY = 3
# Without a history: of an update, against the weights and one.
_ABSURD = 1e6
# Of buffers without a history, against the others': they may begin far from where they belong.
_FIRST_BUFFERS = 1e3
LEAST_STEP_SECONDS = 1e-5
# Clocks whose seconds are not the drive's word.
_NOT_SAID = frozenset({"modelled", "sampled"})
FASTER, SLOWER = 1e3, 1e4
# A loss of the user's own may be below zero, or a square of large numbers; beyond this, either way, it is none.
MOST_LOSS = 1e12
MOST_MEMORY_BYTES = 1 << 44
# Of a client program, over the shard times the job's epochs.
MOST_PASSES = 1_000
MOST_RECORD_BYTES = 1 << 30


@dataclass
class Screen:
    """Judges the contributions of a run, round by round or step by step, and keeps what it has accepted as history.

    Attributes:
        norms: largest median of each norm of a round so far; 0 before the first.
        fastest: device and clock -> least accepted seconds per record.
        devices: that the history is of.
        crossing: of each tensor that crosses the cut of a model: largest median root mean square so far.
        crossed: devices that this is of.
    """

    norms: Norms = field(default_factory=Norms)
    fastest: dict[tuple[str, str], float] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    crossing: dict[str, float] = field(default_factory=dict)
    crossed: set[str] = field(default_factory=set)

    def weight_norm(self, weights: Mapping[str, Array]) -> float:
        """Return the norm of the weights that the drives were sent; infinite if there is a history to judge by."""
        return math.inf if self.norms.norm else math.sqrt(sum(squares(array).total for array in weights.values()))

    def judge(self, parts: Sequence[ScreenedContribution], weight_norm: float = math.inf) -> dict[str, Refusal]:
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

    def judge_activations(
        self,
        means: Mapping[str, Mapping[str, float]],
        where: str = "of what crosses the cut",
        few_factor: float = NORM_FACTOR,
    ) -> dict[str, Refusal]:
        """Return whose activations, or sums of them, are refused, and why; all others' are taken into the history.

        Args:
            means: device -> tensor -> root mean square of what it hands over of it, of those who do so together.
            where: what the tensors are, for whoever reads of a refusal.
            few_factor: how many times the history of more one or two may hand over.
        """
        refused: dict[str, Refusal] = {}
        few, known = len(means) < _MAJORITY, len(self.crossed) >= _MAJORITY
        for tensor in dict.fromkeys(name for each in means.values() for name in each):
            there = {device: each[tensor] for device, each in means.items()}
            before, now = self.crossing.get(tensor, 0.0), _median(list(there.values()))
            if few and not known:
                usual = min(filter(None, (before, *there.values())), default=0.0)
            elif known and before and (few or now > EXPLODING * before):
                usual = before
            else:
                usual = max(before, now) if known else now
            # Where nobody is the majority, or the majority's is zero, sizes up to `EXPLODING` accuse nobody.
            guessed = (few and not known) or not usual
            limit = EXPLODING * max(1.0, usual) if guessed else (few_factor if few else NORM_FACTOR) * usual
            for device, size in there.items():
                if size > limit or not math.isfinite(size):
                    refused[device] = Refusal(
                        Reason.NORM,
                        f"{where}, {tensor} has a root mean square of {size:.3g}, where {usual:.3g} is "
                        f"usual and {limit:.3g} the most that is taken",
                        tensor,
                    )
        accepted = {device: each for device, each in means.items() if device not in refused}
        for tensor in next(iter(accepted.values()), {}):
            before, median = self.crossing.get(tensor, 0.0), _median([each[tensor] for each in accepted.values()])
            if few and known and before:  # whatever is taken of them, they move the history of more by so much at most
                median = min(median, NORM_FACTOR * before)
            # What one or two have left behind is no history once there are more.
            self.crossing[tensor] = median if not (few or known) else max(before, median)
        self.crossed |= accepted.keys()
        return refused

    @property
    def limits(self) -> Norms:
        """Norms that `judge` accepts whatever the others' are; infinite before there is a history of several."""
        if len(self.devices) < _MAJORITY or not self.norms.norm:
            return UNLIMITED
        return Norms(*(NORM_FACTOR * norm for norm in self.norms))

    def state(self) -> dict[str, Any]:
        """Return what must be kept to go on as if the run had never stopped: JSON's types."""
        return {
            **self.norms._asdict(),
            "devices": sorted(self.devices),
            "fastest": [[device, clock, seconds] for (device, clock), seconds in sorted(self.fastest.items())],
            "crossing": dict(sorted(self.crossing.items())),
            "crossed": sorted(self.crossed),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; of nothing, from nothing."""
        self.norms = Norms(*(float(state.get(kind, 0.0)) for kind in Norms._fields))
        self.devices = set(map(str, state.get("devices", ())))
        self.fastest = {(str(d), str(c)): float(seconds) for d, c, seconds in state.get("fastest", ())}
        self.crossing = {str(tensor): float(size) for tensor, size in state.get("crossing", {}).items()}
        self.crossed = set(map(str, state.get("crossed", ())))

    def _accept(self, parts: Sequence[ScreenedContribution]) -> None:
        scans = _scans(parts)
        if scans:
            medians = map(_median, zip(*(scan.norms for scan in scans.values()), strict=True))
            self.norms = Norms(*map(max, self.norms, medians))
        self.devices |= scans.keys()
        for part in [part for part in parts if part.dealt.samples]:
            if part.clock not in _NOT_SAID:
                key = part.device, part.kind
                self.fastest[key] = min(self.fastest.get(key, math.inf), part.record_seconds)

    def _check_seconds(self, parts: Sequence[ScreenedContribution]) -> dict[str, Refusal]:
        said = [part for part in parts if part.clock not in _NOT_SAID and part.dealt.samples]
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

    def _usual_seconds(self, part: ScreenedContribution, seen: Mapping[str, float]) -> tuple[float, float]:
        """Return the usual seconds per record of a drive: the lower and the upper end.

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

    def _check_norms(self, parts: Sequence[ScreenedContribution], weight_norm: float) -> dict[str, Refusal]:
        scans, found = _scans(parts), dict[str, Refusal]()
        if not scans:
            return found
        steps = {part.device: float(part.dealt.steps) for part in parts if part.device in scans}
        usual_steps, before = max(1.0, _median(list(steps.values()))), self.norms.norm
        now = _median([scan.norms.norm for scan in scans.values()])
        exploding = before > 0 and now > EXPLODING * before
        witnessed = len(scans) < _MAJORITY <= len(self.devices)
        reference = before if exploding or witnessed else max(before, now)
        for device, scan in scans.items():
            limit = NORM_FACTOR * reference * max(1.0, steps[device] / usual_steps)
            norm = scan.norms.norm
            if (reference and norm > limit) or norm > _ABSURD * (1.0 + weight_norm):
                found[device] = Refusal(
                    Reason.NORM,
                    f"its update has the norm {norm:.3g}, where {reference:.3g} is usual and {limit:.3g} the "
                    "most that is taken",
                )
        buffers = {device: scan.norms.buffer_norm for device, scan in scans.items()}
        counts = {device: scan.norms.count_norm for device, scan in scans.items()}
        extras = {device: scan.norms.extra_norm for device, scan in scans.items()}
        share = {device: max(1.0, each / usual_steps) for device, each in steps.items()}
        first = NORM_FACTOR if len(self.devices) >= _MAJORITY else _FIRST_BUFFERS
        return (
            self._check_changes(buffers, self.norms.buffer_norm, dict.fromkeys(share, first), "buffers")
            | self._check_changes(
                counts, self.norms.count_norm, {d: NORM_FACTOR * each for d, each in share.items()}, "counts"
            )
            | self._check_changes(extras, self.norms.extra_norm, dict.fromkeys(extras, EXTRA_FACTOR), "further tensors")
            | found
        )

    def _check_changes(
        self, changes: Mapping[str, float], before: float, factors: Mapping[str, float], what: str
    ) -> dict[str, Refusal]:
        """Return whose buffers change out of proportion.

        Args:
            changes: device -> norm of the change.
            before: largest median of the rounds before.
            factors: device -> times the usual change that are taken of it.
            what: the buffers are.
        """
        few, known = len(changes) < _MAJORITY, len(self.devices) >= _MAJORITY
        usual = before if few and known else max(before, _median(list(changes.values())))
        if not usual and few and not known:
            return {}
        return {
            device: Refusal(Reason.NORM, f"the norm of its {what} is {change:.3g}, where {usual:.3g} is usual")
            for device, change in changes.items()
            if change > factors[device] * usual
        }


def _finite(part: ScreenedContribution) -> Refusal | None:
    return not_finite(part.scan.bad) if part.scan is not None and part.scan.bad else None


def _scans(parts: Sequence[ScreenedContribution]) -> dict[str, Scan]:
    """Return what was seen of the tensors of those who had records."""
    return {part.device: part.scan for part in parts if part.scan is not None and part.dealt.samples}


def _as_dealt(part: ScreenedContribution) -> Refusal | None:
    dealt, said = part.dealt, part.said
    if part.by_program:
        most = MOST_PASSES * max(1, dealt.samples)
        if said.samples <= most and (not isinstance(said, Trained) or said.steps <= max(1, said.samples)):
            return None
        told = f"{said.samples} records in {getattr(said, 'steps', 1)} steps; it was dealt {dealt.samples}"
        return Refusal(Reason.SAMPLES, f"it says that its client program took {told}, {MOST_PASSES} passes at most")
    if said.samples != dealt.samples:
        return Refusal(
            Reason.SAMPLES, f"it says that it trained on {said.samples} records; it was dealt {dealt.samples}"
        )
    if isinstance(said, Trained) and said.steps != dealt.steps:
        return Refusal(Reason.SAMPLES, f"it says that it took {said.steps} steps; it was dealt {dealt.steps}")
    return None


def _some_seconds(part: ScreenedContribution) -> Refusal | None:
    total = part.said.seconds.total
    if part.clock in _NOT_SAID or not part.dealt.samples:
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


def _check_losses(parts: Sequence[ScreenedContribution]) -> dict[str, Refusal]:
    found: dict[str, Refusal] = {}
    for part in parts:
        said = part.said
        if not abs(said.loss) <= MOST_LOSS:  # nor if it is NaN
            found[part.device] = Refusal(Reason.LOSS, f"it reports a loss of {said.loss:g}")
        elif said.peak_memory_bytes > MOST_MEMORY_BYTES:
            found[part.device] = Refusal(
                Reason.REPORT, f"it says that it held {said.peak_memory_bytes} bytes of memory"
            )
        elif said.read_bytes > MOST_RECORD_BYTES * max(said.samples, part.dealt.samples):
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

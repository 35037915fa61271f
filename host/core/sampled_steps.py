"""Which steps to count of those that are alike, and what the counted ones say of the others. Pure.

Steps of a training job repeat: those of one kind, a *stratum*, take the same number of instructions but for some 0.1 %.
So a few of each are counted whole, and the mean stands for the rest: stratified, systematic sampling, with an interval
(SMARTS: Wunderlich et al., ISCA 2003) of units that lie between synchronisations (BarrierPoint: Carlson et al., ISPASS
2014; SeqPoint: Pati et al., ISPASS 2020). A step that does not fit its stratum opens a new one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scipy.special import stdtrit

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.sampling_record import SamplingRecord

# Stages: all steps but those below; copying the weights out; a drive's first steps of a size, for which torch and the
# kernel have no memory yet; those that follow them in a federated run; and the steps that begin a later round of it,
# with a new optimiser and what the exchange has left to do.
STEADY, ENCODE = "steady", "encode"
STAGES = {1: "first", 2: "second"}
FIRST_ROUND_STAGES = [STEADY, STEADY, "third", "fourth"]
ROUND_STAGES = ["first of a round", "second of a round"]
# So many steps of the first two stages are counted before the mean stands for others; more, up to the most, if they
# differ, until half of the mean's interval is so small. Never more are counted than the mean stands for.
STEADY_STEPS, MOST_STEPS, _ENOUGH = 5, 20, 0.005
# From this share of a run's records on; of a stratum with less of them fewer.
_LARGE_SHARE = 0.1
# In a synchronous run a drive's step is counted every so many steps, the drives taking turns.
CHECK_STEPS = 5
# Half widths of 95 % intervals of what one machine's steps say of another's: of all (`csd-emu bench repeatability`),
# and of what a first step takes longer than steady ones (measured on four machines).
REPEATABILITY, START_SPREAD = 0.001, 0.3
# A step lies outside its stratum if it differs by more than its interval of this level, and than so much.
_OUTSIDE, _LEAST_CHANGE = 0.999, 0.015
# Standard deviation over the mean that interrupts in a machine do not account for.
_IRREGULAR = 0.01
_PHASES = PhaseSeconds.__struct_fields__
Size = tuple[int, int]
"""Records of a step, and how many at most are computed at a time."""


class Stratum(NamedTuple):
    """Kind of a step.

    Attributes:
        records: of the step; 0 for copying the weights out.
        micro_batch: at most so many of them are computed at a time.
        weight: cgroup weight of the task that competes.
        stage: of the job.
        level: how often the drive was seen to take another time than before without a reason that is known.
    """

    records: int
    micro_batch: int
    weight: int
    stage: str
    level: int

    @property
    def size(self) -> Size:
        """Records, and how many at most are computed at a time."""
        return self.records, self.micro_batch

    @property
    def steady(self) -> Stratum:
        """The stratum of steady steps of the same kind."""
        return self._replace(stage=STEADY)


@dataclass
class StratumSamples:
    """Counted steps of a stratum.

    Attributes:
        count: how many.
        mean: seconds per phase.
        squares: sum of squared differences of the steps' seconds from their mean.
    """

    count: int = 0
    mean: PhaseSeconds = field(default_factory=PhaseSeconds)
    squares: float = 0.0

    def add(self, seconds: PhaseSeconds) -> None:
        """Add a step (Welford's update)."""
        self.count += 1
        before = seconds.total - self.mean.total
        self.mean = PhaseSeconds(
            *(old + (new - old) / self.count for old, new in zip(_values(self.mean), _values(seconds), strict=True))
        )
        self.squares += before * (seconds.total - self.mean.total)

    @property
    def deviation(self) -> float:
        """Standard deviation of the steps' seconds over their mean; 0 of fewer than two."""
        if self.count < 2 or not self.mean.total:
            return 0.0
        return math.sqrt(self.squares / (self.count - 1)) / self.mean.total

    def holds(self, seconds: PhaseSeconds, deviation: float) -> bool:
        """Return whether a step is of this stratum, whose steps have at least this relative `deviation`."""
        if self.count < 2:
            return True
        spread = max(deviation, self.deviation) * math.sqrt(1 + 1 / self.count)
        limit = max(_LEAST_CHANGE, float(stdtrit(self.count - 1, (1 + _OUTSIDE) / 2)) * spread)
        return abs(seconds.total - self.mean.total) <= limit * self.mean.total


@dataclass
class _Device:
    """What is known of a drive: its steps of each size, its rounds, and its level."""

    steps: Counter[Size] = field(default_factory=Counter)
    rounds: int = 0
    level: int = 0


@dataclass
class _Totals:
    """What a device did since the last record.

    Attributes:
        taken: stratum -> steps that its mean stands for.
        own_seconds: of steps of its own that were counted.
        own_steps: how many.
        failed: whether a stratum had no counted step.
    """

    taken: Counter[Stratum] = field(default_factory=Counter)
    own_seconds: float = 0.0
    own_steps: int = 0
    failed: bool = False


class SampledSteps:
    """The strata of a run, and where each of its drives stands.

    Attributes:
        strata: the counted steps.
    """

    def __init__(self, machines: int = 1) -> None:
        """Begin with nothing counted, by so many virtual machines."""
        self.strata: defaultdict[Stratum, StratumSamples] = defaultdict(StratumSamples)
        self._machines = [Counter[Size]() for _ in range(machines)]
        self._devices: defaultdict[str, _Device] = defaultdict(_Device)
        # Steps that were begun.
        self._begun: Counter[Stratum] = Counter()
        self._begun_records = 0
        self._suspects: set[str] = set()
        self._checks = 0
        self._totals: defaultdict[str, _Totals] = defaultdict(_Totals)
        self._counted_steps = 0

    @property
    def deviation(self) -> float:
        """Relative standard deviation of steady steps in their strata, pooled over all that have several."""
        steady = [s for stratum, s in self.strata.items() if stratum.stage == STEADY and s.mean.total]
        freedom = sum(samples.count - 1 for samples in steady)
        squares = (samples.squares / samples.mean.total**2 for samples in steady)
        return math.sqrt(math.fsum(squares) / freedom) if freedom else 0.0

    def begin_step(self, device: str, records: int, micro_batch: int, weight: int) -> Stratum:
        """Return the stratum of the synchronous step that a device begins."""
        return self._begin(device, (records, micro_batch), weight)

    def begin_round(self, device: str, sizes: Sequence[int], weight: int) -> list[Stratum]:
        """Return the strata of a round of a device, its steps being of these `sizes`; copying out comes last."""
        state = self._devices[device]
        state.rounds += 1
        stages = (ROUND_STAGES if state.rounds > 1 else FIRST_ROUND_STAGES) + [STEADY] * len(sizes)
        steps = [self._begin(device, (size, size), weight, stage) for size, stage in zip(sizes, stages, strict=False)]
        return [*steps, Stratum(0, 0, weight, ENCODE, state.level)]

    def _begin(self, device: str, size: Size, weight: int, stage: str = STEADY) -> Stratum:
        state = self._devices[device]
        state.steps[size] += 1
        number = state.steps[size]
        stratum = Stratum(*size, weight, STAGES.get(number, stage), state.level)
        if number in STAGES and not self.strata[stratum].count and all(m[size] >= number for m in self._machines):
            stratum = stratum._replace(stage=stage)  # no machine can take such a step any more
        # Of a size whose first steps were seen, what begins a round is a steady step and a difference.
        self._begun[stratum if stratum.stage in STAGES.values() else stratum.steady] += 1
        self._begun_records += stratum.records
        return stratum

    def lacks(self, stratum: Stratum) -> int:
        """Return how many steps of a stratum shall be counted before its mean stands for those that were begun.

        As many as its share of all records asks for, at most all.
        """
        samples, begun = self.strata[stratum], self._begun[stratum]
        if stratum.stage in STAGES.values():
            return int(begun > samples.count == 0)
        if stratum.stage != STEADY or not begun:
            return 0
        share = begun * stratum.records / self._begun_records
        differing = min(MOST_STEPS, math.ceil((2 * samples.deviation / _ENOUGH) ** 2))
        wanted = max(math.ceil(min(1.0, share / _LARGE_SHARE) * STEADY_STEPS), differing)
        return max(0, min(wanted, begun) - samples.count)

    def used(self, machine: int) -> Counter[Size]:
        """Return how many steps of each size a machine has taken."""
        return self._machines[machine]

    def restart(self, machine: int) -> None:
        """Take note that a machine begins anew."""
        self._machines[machine].clear()

    def choose(self, step: int, begun: Mapping[str, Stratum]) -> list[str]:
        """Return the devices whose parts of a synchronous step are counted.

        Args:
            step: its number.
            begun: device -> stratum of its part.
        """
        chosen = [device for device in begun if device in self._suspects]
        self._suspects.difference_update(chosen)
        missing = {stratum: self.lacks(stratum) for stratum in set(begun.values())}
        for device, stratum in begun.items():
            if missing[stratum] > 0 and device not in chosen:
                missing[stratum] -= 1
                chosen.append(device)
        if step % CHECK_STEPS == 0 and not chosen and begun:
            chosen.append(self.next_in_turn(list(begun)))
        return chosen

    def next_in_turn(self, devices: Sequence[str]) -> str:
        """Return whose turn it is to be looked at."""
        self._checks += 1
        return devices[self._checks % len(devices)]

    def count(self, device: str, stratum: Stratum, seconds: PhaseSeconds, machine: int = 0) -> Stratum:
        """Take note of a device's step that a machine has counted; return its stratum, which has the machine's stage.

        If it does not fit, the stratum is a new one, and the others are looked at soon.
        """
        if stratum.stage != ENCODE:
            self._counted_steps += 1
            self._machines[machine][stratum.size] += 1
            usual = STEADY if stratum.stage in STAGES.values() else stratum.stage
            stratum = stratum._replace(stage=STAGES.get(self._machines[machine][stratum.size], usual))
        if not self.strata[stratum].holds(seconds, self.deviation):
            self._devices[device].level += 1
            stratum = stratum._replace(level=self._devices[device].level)
            self._suspects = set(self._devices) - {device}
        self.strata[stratum].add(seconds)
        return stratum

    def irregular(self, stratum: Stratum) -> bool:
        """Return whether steady steps of one kind differ, by more than interrupts account for."""
        samples = self.strata[stratum]
        return stratum.stage == STEADY and samples.count >= STEADY_STEPS and samples.deviation > _IRREGULAR

    def level(self, device: str) -> int:
        """Return how often a device was seen to take another time than before."""
        return self._devices[device].level

    def take(self, device: str, strata: Sequence[Stratum], counted: PhaseSeconds | None = None) -> PhaseSeconds | None:
        """Return the seconds of what a device did: `counted` ones, or the means of its steps' strata.

        None if one of them was never counted.
        """
        totals = self._totals[device]
        if counted is not None:
            totals.own_seconds += counted.total
            totals.own_steps += 1
            return counted
        totals.taken.update(strata)
        means = [self.mean(stratum) for stratum in strata]
        known = [_values(mean) for mean in means if mean is not None]
        totals.failed = totals.failed or len(known) < len(means)
        return PhaseSeconds(*map(math.fsum, zip(*known, strict=True))) if len(known) == len(means) else None

    def mean(self, stratum: Stratum) -> PhaseSeconds | None:
        """Return the mean seconds of a stratum's steps; None if none was counted.

        Of one that begins a round, if no step of its size was, they are those of steady steps of the size, and what
        such a stage of other sizes takes longer.
        """
        samples, steady = self.strata[stratum], self.strata[stratum.steady]
        if samples.count or stratum.stage == ENCODE:
            return samples.mean if samples.count else None
        if not steady.count:
            return None
        others = [
            (each.mean, self.strata[other.steady].mean)
            for other, each in list(self.strata.items())
            if other.stage == stratum.stage not in STAGES.values() and each.count and self.strata[other.steady].count
        ]
        if not others:
            return steady.mean
        more = [
            math.fsum(getattr(after, phase) - getattr(before, phase) for after, before in others) / len(others)
            for phase in _PHASES
        ]
        return PhaseSeconds(*(max(0.0, each + add) for each, add in zip(_values(steady.mean), more, strict=True)))

    def record(self) -> SamplingRecord:
        """Return how far all that was taken since the last record rests on samples."""
        totals, self._totals = self._totals, defaultdict(_Totals)
        counted, self._counted_steps = self._counted_steps, 0
        seconds = {device: self._seconds(each) for device, each in totals.items()}
        steps = sum(
            each.own_steps + sum(n for s, n in each.taken.items() if s.stage != ENCODE) for each in totals.values()
        )
        whole = math.fsum(seconds.values())
        errors = [self._half_width(each) / seconds[device] for device, each in totals.items() if not each.failed]
        starts = math.fsum(self._start_seconds(each.taken) for each in totals.values())
        return SamplingRecord(
            counted_steps=counted,
            steps=steps,
            error=math.hypot(max(errors, default=0.0), REPEATABILITY),
            start_share=starts / whole if whole else 0.0,
            not_counted=sorted(device for device, each in totals.items() if each.failed),
        )

    def _seconds(self, totals: _Totals) -> float:
        return totals.own_seconds + math.fsum(n * self._mean_seconds(s) for s, n in totals.taken.items())

    def _mean_seconds(self, stratum: Stratum) -> float:
        mean = self.mean(stratum)
        return 0.0 if mean is None else mean.total

    def _half_width(self, totals: _Totals) -> float:
        """Return the half width, seconds, of the 95 % interval of a device's seconds.

        Of n steps with a stratum's mean of k counted ones and standard deviation s the variance is (n / k + 1) n s^2.
        """
        pooled = self.deviation
        freedom = sum(max(0, samples.count - 1) for samples in self.strata.values()) or 1
        variance = (START_SPREAD * self._start_seconds(totals.taken) / float(stdtrit(freedom, 0.975))) ** 2
        for stratum, n in totals.taken.items():
            samples = self.strata[stratum]
            deviation = max(pooled, samples.deviation) * self._mean_seconds(stratum)
            variance += (n / max(1, samples.count) + 1) * n * deviation**2
        return float(stdtrit(freedom, 0.975)) * math.sqrt(variance)

    def _start_seconds(self, taken: Mapping[Stratum, int]) -> float:
        """Return what first steps took longer than steady ones of the same size."""
        return math.fsum(
            n * (self._mean_seconds(stratum) - self.strata[stratum.steady].mean.total)
            for stratum, n in taken.items()
            if stratum.stage not in (STEADY, ENCODE) and self.strata[stratum.steady].count
        )


def round_sizes(samples: int, epochs: int, batch_size: int) -> list[int]:
    """Return the records of each step of a federated round: whole passes over `samples` records."""
    full, rest = divmod(samples, batch_size)
    return ([batch_size] * full + [rest] * bool(rest)) * epochs


def _values(seconds: PhaseSeconds) -> list[float]:
    return [getattr(seconds, phase) for phase in _PHASES]

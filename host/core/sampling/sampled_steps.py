"""Which steps to count of those that are alike, and what the counted ones say of the others. Pure.

Steps of a training job repeat: those of one kind, a *stratum*, take the same number of instructions but for some 0.1 %.
So a few of each are counted whole, and the mean stands for the rest: stratified, systematic sampling, with an interval
(SMARTS: Wunderlich et al., ISCA 2003) of units that lie between synchronisations (BarrierPoint: Carlson et al., ISPASS
2014; SeqPoint: Pati et al., ISPASS 2020). A step that does not fit its stratum opens a new one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from scipy.special import stdtrit

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.sampling.drive_progress import DriveProgress, DriveTotals
from host.core.sampling.looks import LOOK_STEPS, LookKind, Looks
from host.core.sampling.sampling_record import DriveSeconds, SamplingRecord
from host.core.sampling.strata import (
    ENCODE,
    FIRST_ROUND,
    FIRST_STAGES,
    IRREGULAR,
    ROUND_STAGES,
    STAGES,
    START,
    STEADY,
    Size,
    Stratum,
    StratumSamples,
    find_level,
    fits,
    phase_values,
)
from host.core.sampling.stratum_record import list_strata

# So many steps of a stratum are counted before the mean stands for others, or one where so many of its kind have told
# that they are not irregular, or where it is so small a part of all seconds and no task competes; more, up to the most,
# if they differ, until half of the interval of all means together is so small a part of all seconds, and the standard
# error of its own, by which tuners go, so small a part of it. Never more than the mean stands for.
LEAST_STEPS, _KNOWN_STEPS, _SMALL, MOST_STEPS, _ENOUGH, _OWN_ENOUGH = 2, 6, 0.03, 20, 0.007, 0.03
# Steps of a stratum from which on it is known whether they are irregular; of those that begin rounds one in so many has
# a steady one behind it.
_SURE_STEPS, _CHECK_ROUNDS = 8, 7
# Half widths of 95 % intervals of what one machine's steps say of another's: of all, for a machine takes fewer steps
# than the drives, and its first dozens are slower; of what a machine's first step of all takes longer than its second,
# which differs from machine to machine by a third (standard deviation); and of what other first steps take longer than
# steady ones, which differs by a tenth (`csd-emu bench sampled`, ten jobs).
MACHINE_SPREAD, START_SPREAD, FIRST_SPREAD = 0.002, 0.7, 0.3
_PHASES = PhaseSeconds.__struct_fields__


class SampledSteps:
    """The strata of a run, and where each of its drives stands.

    Attributes:
        strata: the counted steps.
        looks: what was counted of parts of steps, all by the first machine.
        taken: of each machine, its steps of each size.
    """

    def __init__(self, machines: int = 1) -> None:
        """Begin with nothing counted, by so many virtual machines."""
        self.strata: defaultdict[Stratum, StratumSamples] = defaultdict(StratumSamples)
        self.looks = Looks()
        self.taken = [Counter[Size]() for _ in range(machines)]
        self._devices: defaultdict[str, DriveProgress] = defaultdict(DriveProgress)
        # Steps that were begun.
        self._begun: Counter[Stratum] = Counter()
        # Steps that have a mean's seconds.
        self._stood_for: Counter[Stratum] = Counter()
        # Devices to look at, and those that another one's change has warned of.
        self._suspects: set[str] = set()
        self._warned: set[str] = set()
        self._totals: defaultdict[str, DriveTotals] = defaultdict(DriveTotals)
        self._counted_steps = 0

    def deviation(self, stratum: Stratum) -> float:
        """Return the relative standard deviation of steps of a stratum, or the pooled one of its kind, if larger."""
        return max(self.strata[stratum].deviation, self._pooled(stratum)[0])

    def _pooled(self, stratum: Stratum) -> tuple[float, int]:
        """Return the pooled relative standard deviation of a stratum's kind, and its degrees of freedom.

        Of a kind are the steady steps beside which no task competes, and those beside which one does.
        """
        kind = [
            samples
            for other, samples in self.strata.items()
            if other.is_steady and samples.mean.total and bool(other.weight) == bool(stratum.weight)
        ]
        freedom = sum(len(samples.later) - 1 for samples in kind)
        squares = math.fsum(samples.squares / samples.mean.total**2 for samples in kind)
        return math.sqrt(squares / freedom) if freedom else 0.0, freedom

    def begin_step(self, device: str, records: int, micro_batch: int, weight: int) -> Stratum:
        """Return the stratum of the synchronous step that a device begins."""
        return self._begin(device, (records, micro_batch), weight)

    def begin_round(self, device: str, sizes: Sequence[int], weight: int) -> list[Stratum]:
        """Return the strata of a round of a device, its steps being of these `sizes`; copying out comes last."""
        state = self._devices[device]
        state.rounds += 1
        usual, begin = (STEADY, ROUND_STAGES) if state.rounds > 1 else (FIRST_ROUND, FIRST_STAGES)
        stages = [*begin, *[usual] * len(sizes)]
        steps = [self._begin(device, (size, size), weight, stage) for size, stage in zip(sizes, stages, strict=False)]
        return [*steps, Stratum(0, 0, weight, ENCODE, state.levels[0, 0])]

    def _begin(self, device: str, size: Size, weight: int, stage: str = STEADY) -> Stratum:
        state = self._devices[device]
        state.steps[size] += 1
        number = state.steps[size]
        stratum = Stratum(*size, weight, _stage_of(state.steps, size, stage), state.levels[size])
        if (
            stratum.stage in STAGES.values()
            and not self.strata[stratum].count
            and all(taken[size] >= number for taken in self.taken)
        ):
            stratum, number = stratum._replace(stage=stage), 0  # no machine can take such a step any more
        # Of a size whose first steps were seen, what begins a round is a steady step and a difference.
        self._begun[stratum if number in STAGES else stratum.steady] += 1
        return stratum

    def lacks(self, stratum: Stratum) -> int:
        """Return how many steps of a stratum shall be counted before its mean stands for those that were begun.

        As many as its share of all seconds asks for, at most all.
        """
        samples, begun = self.strata[stratum], self._begun[stratum]
        if stratum.stage in (START, *STAGES.values()):
            return int(begun > samples.count == 0)
        if not stratum.is_steady or not begun:
            return 0
        seconds = self._guess_seconds()
        whole = sum(seconds.values())
        share = seconds[stratum] / whole
        # Neyman's allocation: as their shares times their deviations, so many that all means together are known well.
        spread = math.fsum(part / whole * self.strata[other].deviation for other, part in seconds.items())
        deviation = self.deviation(stratum)
        of_all, of_own = share * deviation * spread * (2 / _ENOUGH) ** 2, (deviation / _OWN_ENOUGH) ** 2
        differing = min(MOST_STEPS, math.ceil(max(of_all, of_own)))
        return max(0, min(max(self._least(stratum, share), differing), begun) - samples.count)

    def _least(self, stratum: Stratum, share: float = 1.0) -> int:
        pooled, freedom = self._pooled(stratum)
        small = share < _SMALL and not stratum.weight
        return 1 if small or (freedom >= _KNOWN_STEPS and pooled < IRREGULAR) else LEAST_STEPS

    def _guess_seconds(self) -> dict[Stratum, float]:
        """Return the seconds of all steps that were begun; of strata without a counted one by their records."""
        known = [(samples.mean.total, other.records) for other, samples in self.strata.items() if samples.count]
        usual = sum(seconds for seconds, _ in known) / max(1, sum(records for _, records in known)) or 1.0
        return {
            stratum: number * (self.strata[stratum].mean.total or stratum.records * usual)
            for stratum, number in self._begun.items()
        }

    def restart(self, machine: int) -> None:
        """Take note that a machine begins anew: its first steps say nothing of those of the one before."""
        self.taken[machine].clear()
        if machine == 0:
            self.looks.taken.clear()
        for state in self._devices.values():
            state.doubted = {stratum: step for stratum, step in state.doubted.items() if step and stratum.is_steady}

    def restart_device(self, device: str) -> None:
        """Take note that a device begins anew, having been away."""
        self._devices[device].rounds = 0
        self._devices[device].steps.clear()

    def choose(self, step: int, begun: Mapping[str, Stratum]) -> list[str]:
        """Return the devices whose parts of a synchronous step are counted.

        Args:
            step: its number.
            begun: device -> stratum of its part.
        """
        chosen = [
            device
            for device, stratum in begun.items()
            if device in self._suspects or self.now(device, stratum) in self._devices[device].doubted
        ]
        self._suspects.difference_update(chosen)
        missing = {stratum: self.lacks(stratum) for stratum in set(begun.values())}
        for device, stratum in begun.items():
            if missing[stratum] > 0 and device not in chosen:
                missing[stratum] -= 1
                chosen.append(device)
        if any(self.strata[begun[device]].count > 1 for device in chosen):  # of others a step looks at nothing
            self.looks.last_step = step
        return chosen

    def look(self, step: int, begun: Mapping[str, Stratum]) -> tuple[str, list[LookKind]] | None:
        """Return the device whose part of a synchronous step is looked at while later ones go on; None if none is due.

        Arguments are those of `choose`. With it come the looks, which say whether anything has changed, more of them
        until they are known; without any the whole step is counted.
        """
        if not begun or step - self.looks.last_step < LOOK_STEPS:
            return None
        device = self.looks.next_in_turn(list(begun))
        stratum = self.now(device, begun[device])
        if not stratum.is_steady:
            return None
        self.looks.last_step = step
        plan = self.looks.plan(stratum, self.strata[stratum], self._least(stratum))
        return device, plan if self.taken[0] else []  # its first step of all is to be a whole one

    def choose_again(self, begun: Mapping[str, Stratum]) -> list[str]:
        """Return the devices whose parts of the same step are counted once more, having been counted or not.

        Their step did not fit; or its mean is not known; or it is a machine's first, whose excess over its second shall
        be known. The first machine counts all but those that did not fit.
        """
        doubted = [
            device for device in begun if device in self._suspects and any(self._devices[device].doubted.values())
        ]
        self._suspects.difference_update(doubted)
        for device, stratum in () if doubted else begun.items():
            now = self.now(device, stratum)
            if self.mean(now) is None or (stratum.stage == START and self.taken[0][stratum.size] == 1):
                return [device]
        return doubted

    def count(self, device: str, stratum: Stratum, seconds: PhaseSeconds, machine: int = 0) -> Stratum:
        """Take note of a device's step that a machine has counted; return its stratum, which has the machine's stage.

        If it does not fit, the stratum is a new one, and the others are looked at soon.
        """
        if stratum.stage != ENCODE:
            self._counted_steps += 1
            self.taken[machine][stratum.size] += 1
            usual = STEADY if stratum.stage in (START, *STAGES.values()) else stratum.stage
            stratum = stratum._replace(stage=_stage_of(self.taken[machine], stratum.size, usual))
        state, size = self._devices[device], stratum.size
        stratum = self.now(device, stratum)
        doubted = state.doubted.pop(stratum, None)
        both = [each for each in (doubted, seconds) if each is not None]
        if not fits(self.strata, stratum, seconds, self.deviation(stratum)):
            if doubted is None and device not in self._warned:  # the next one says if it was an interrupt
                state.doubted[stratum] = seconds
                self._suspects.add(device)
                return stratum
            state.levels[size] = find_level(self.strata, stratum, both, self.deviation(stratum))
            stratum = stratum._replace(level=state.levels[size])
            self._suspects = set(self._devices) - {device}
            self._warned |= self._suspects
        self._warned.discard(device)
        for each in both:
            self.strata[stratum].add(each)
        return stratum

    def count_look(self, device: str, stratum: Stratum, seconds: PhaseSeconds) -> None:
        """Take note of a look at a device's steady step; if it does not fit, a whole step is counted soon."""
        if self.looks.add(stratum, seconds, self.deviation(stratum), stratum == self.now(device, stratum), self.strata):
            self._devices[device].doubted.setdefault(stratum, None)

    def next_suspect(self, devices: Collection[str]) -> str | None:
        """Return one of the devices that are to be looked at, once; None if there is none."""
        found = next((device for device in devices if device in self._suspects), None)
        self._suspects.discard(found or "")
        return found

    def irregular(self, stratum: Stratum) -> bool:
        """Return whether steady steps of one kind differ, by more than interrupts account for."""
        samples = self.strata[stratum]
        return stratum.is_steady and samples.count >= _SURE_STEPS and samples.deviation > IRREGULAR

    def is_sure(self, begin: Stratum) -> bool:
        """Return whether the step that begins a round says enough, without a steady one: about every second time."""
        steady, begun = self.strata[begin.steady].count, self.strata[begin].count
        return begin.stage == ROUND_STAGES[0] and max(min(2 * _SURE_STEPS, begun) / 2, begun / _CHECK_ROUNDS) <= steady

    def now(self, device: str, stratum: Stratum) -> Stratum:
        """Return the same stratum of the level that a device has now."""
        return stratum._replace(level=self._devices[device].levels[stratum.size])

    def take(self, device: str, strata: Sequence[Stratum], counted: PhaseSeconds | None = None) -> PhaseSeconds | None:
        """Return the seconds of what a device did: `counted` ones, or the means of its steps' strata.

        None if one of them was never counted.
        """
        totals = self._totals[device]
        if counted is not None:
            totals.own_seconds += counted.total
            totals.own.update(strata)
            return counted
        totals.taken.update(strata)
        self._stood_for.update(strata)
        for stratum in strata:
            totals.shares[stratum] += 1 / max(1, len(self.strata[stratum].later))
        means = [self.mean(stratum) for stratum in strata]
        known = [phase_values(mean) for mean in means if mean is not None]
        totals.failed = totals.failed or len(known) < len(means)
        return PhaseSeconds(*map(math.fsum, zip(*known, strict=True))) if len(known) == len(means) else None

    def mean(self, stratum: Stratum) -> PhaseSeconds | None:
        """Return the mean seconds of a stratum's steps; None if none was counted.

        Of one that begins a round, or is a drive's first, if no step of its size was, they are those of other steps of
        the size, and what such a stage of other sizes takes longer.
        """
        if (samples := self.strata[stratum]).count or stratum.stage == ENCODE:
            return samples.mean if samples.count else None
        base = next((each for each in stratum.alike if self.strata[each].count), None)
        if base is None:
            return None
        others = [
            (each.mean, self.strata[after].mean)
            for other, each in list(self.strata.items())
            if other.stage == stratum.stage not in STAGES.values() and each.count
            for after in other.alike[:1]
            if self.strata[after].count
        ]
        more = [
            math.fsum(getattr(after, phase) - getattr(before, phase) for after, before in others) / max(1, len(others))
            for phase in _PHASES
        ]
        return PhaseSeconds(
            *(max(0.0, each + add) for each, add in zip(phase_values(self.strata[base].mean), more, strict=True))
        )

    def record(self) -> SamplingRecord:
        """Return how far all that was taken since the last record rests on samples."""
        totals, self._totals = self._totals, defaultdict(DriveTotals)
        counted, self._counted_steps = self._counted_steps, 0
        seconds = {
            device: each.own_seconds + math.fsum(n * self._mean_seconds(s) for s, n in each.taken.items())
            for device, each in totals.items()
        }
        steps = sum(n for each in totals.values() for s, n in (each.taken + each.own).items() if s.stage != ENCODE)
        whole = math.fsum(seconds.values())
        drives = {
            device: DriveSeconds(seconds=seconds[device], half_width_seconds=self._half_width(each, seconds[device]))
            for device, each in totals.items()
            if not each.failed
        }
        starts = math.fsum(self._start_seconds(each.taken + each.own) for each in totals.values())
        return SamplingRecord(
            counted_steps=counted,
            steps=steps,
            error=max((each.error for each in drives.values()), default=MACHINE_SPREAD),
            start_share=starts / whole if whole else 0.0,
            not_counted=sorted(device for device, each in totals.items() if each.failed),
            strata=list_strata(self.strata, self._stood_for),
            drives=drives,
        )

    def _mean_seconds(self, stratum: Stratum) -> float:
        mean = self.mean(stratum)
        return 0.0 if mean is None else mean.total

    def _half_width(self, totals: DriveTotals, seconds: float) -> float:
        """Return the half width, seconds, of the 95 % interval of a device's seconds.

        Of n steps with a stratum's mean of k counted ones and standard deviation s the variance is (n / k + 1) n s^2;
        for n / k stands the sum over the steps, for each of which k was that of its time. Of n steps that were counted
        it is 2 n s^2: a drive's own step and the machine's do not interrupt each other alike.
        """
        freedom = sum(max(0, len(samples.later) - 1) for samples in self.strata.values()) or 1
        quantile = float(stdtrit(freedom, 0.975))
        variance = (MACHINE_SPREAD * seconds / quantile) ** 2
        for stratum, n in (totals.taken + totals.own).items():
            deviation = self.deviation(stratum) * self._mean_seconds(stratum)
            spread = START_SPREAD if stratum.stage == START else FIRST_SPREAD
            variance += (spread * self._start_seconds({stratum: n}) / quantile) ** 2 + deviation**2 * (
                totals.shares[stratum] * totals.taken[stratum] + n + totals.own[stratum]
            )
        return quantile * math.sqrt(variance)

    def _start_seconds(self, taken: Mapping[Stratum, int]) -> float:
        """Return what first steps took longer than steady ones of the same size."""
        return math.fsum(
            n * (self._mean_seconds(stratum) - self.strata[stratum.steady].mean.total)
            for stratum, n in taken.items()
            if not stratum.is_steady and stratum.records and self.strata[stratum.steady].count
        )


def _stage_of(taken: Counter[Size], size: Size, usual: str) -> str:
    """Return the stage of the last step of those that were taken, of this size; `usual` if it is a later one."""
    return START if taken.total() == 1 else STAGES.get(taken[size], usual)


def round_sizes(samples: int, epochs: int, batch_size: int) -> list[int]:
    """Return the records of each step of a federated round: whole passes over `samples` records."""
    full, rest = divmod(samples, batch_size)
    return ([batch_size] * full + [rest] * bool(rest)) * epochs

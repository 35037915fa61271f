"""Kinds of steps, and what was counted of each. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from scipy.special import stdtrit

from firmware_agent.common.frames.frame_fields import PhaseSeconds

# Stages: all steps but those below; those of the first federated round; copying the weights out; a drive's first step
# of all; its first ones of a size, for which torch and the kernel have no memory yet; those that follow them in the
# first round; and the steps that begin a later round, with a new optimiser and what the exchange has left to do.
STEADY, FIRST_ROUND, ENCODE, START = "steady", "first round", "encode", "first of all"
STAGES = {1: "first", 2: "second"}
FIRST_STAGES = [FIRST_ROUND, FIRST_ROUND, "third", "fourth"]
ROUND_STAGES = ["first of a round", "second of a round"]
# A step lies outside its stratum if it differs by more than its interval of this level, than so large a part of it, and
# than an interrupt takes. No distribution of steps is narrower than a nanosecond.
_OUTSIDE, _LEAST_CHANGE, _INTERRUPT_SECONDS, _NANOSECOND = 0.99, 0.015, 0.0003, 1e-9
# A step is of another level than its own where that is so many times likelier; it is near a mean within this factor.
_LIKELIER, _NEAR = 20.0, 1.2
# Standard deviation over the mean that neither interrupts in a machine nor its age account for.
IRREGULAR = 0.01
# How many of the later half of a stratum's counted steps speak for it.
_LEAST_KEPT, _MOST_KEPT = 3, 20

Size = tuple[int, int]
"""Records of a step, and how many at most are computed at a time."""


class Stratum(NamedTuple):
    """Kind of a step.

    Attributes:
        records: of the step; 0 for copying the weights out.
        micro_batch: at most so many of them are computed at a time.
        weight: cgroup weight of the task that competes.
        stage: of the job.
        level: which of the times that steps of this size were seen to take without a reason that is known.
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
    def is_steady(self) -> bool:
        """Whether such steps are the many, whose mean counts."""
        return self.stage in (STEADY, FIRST_ROUND)

    @property
    def steady(self) -> Stratum:
        """The stratum of steady steps of the same kind, and of the first round if this is of it."""
        return self._replace(stage=FIRST_ROUND if self.stage in FIRST_STAGES else STEADY)

    @property
    def alike(self) -> list[Stratum]:
        """Strata of the same size that it is close to, the closest first."""
        after = (STAGES[2], STAGES[1]) * (self.stage == START)
        return [self._replace(stage=stage) for stage in (*after, self.steady.stage, FIRST_ROUND)]


@dataclass
class StratumSamples:
    """Counted steps of a stratum; the later half of them speaks for it, since a machine's first dozens are slower.

    Of these some take 0.3 to 1 % longer, for the kernel had something else to do: with few steps such a one would
    decide, so that the mean is of the middle half. Where steps differ by more than that, all are its part.

    Attributes:
        count: how many were counted.
        later: seconds of the later half, at least three and at most twenty; all if they differ by much.
        mean: of the middle half of these, or of all, per phase.
        squares: sum of squared differences of all their seconds from the mean.
    """

    count: int = 0
    later: deque[PhaseSeconds] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    mean: PhaseSeconds = field(default_factory=PhaseSeconds)
    squares: float = 0.0

    def add(self, seconds: PhaseSeconds) -> None:
        """Add a step; every other time the earliest one that is left goes."""
        self.count += 1
        self.later.append(seconds)
        if len(self.later) > max(_LEAST_KEPT, math.ceil(self.count / 2)) and self.deviation < IRREGULAR:
            self.later.popleft()
        self._take_mean(0)
        if self.deviation < IRREGULAR:
            self._take_mean(round(len(self.later) / 4))

    def _take_mean(self, left_out: int) -> None:
        """Take the mean without so many of the shortest and of the longest steps."""
        steps = sorted(self.later, key=lambda step: step.total)[left_out : len(self.later) - left_out]
        self.mean = PhaseSeconds(*map(fmean, zip(*map(phase_values, steps), strict=True)))
        self.squares = math.fsum((each.total - self.mean.total) ** 2 for each in self.later)

    @property
    def deviation(self) -> float:
        """Standard deviation of the steps' seconds over their mean; 0 of fewer than two."""
        if len(self.later) < 2 or not self.mean.total:
            return 0.0
        return math.sqrt(self.squares / (len(self.later) - 1)) / self.mean.total

    def holds(self, seconds: PhaseSeconds, deviation: float) -> bool:
        """Return whether a step is of this stratum; of one with few steps these have at least this `deviation`."""
        if self.count < 2:
            return True
        quantile = float(stdtrit(len(self.later) - 1, (1 + _OUTSIDE) / 2))
        limit = max(_LEAST_CHANGE, quantile * self._spread(deviation)) * self.mean.total
        return abs(seconds.total - self.mean.total) <= max(limit, _INTERRUPT_SECONDS)

    def is_near(self, seconds: PhaseSeconds) -> bool:
        """Return whether a step is of much the same length as these."""
        return self.mean.total / _NEAR < seconds.total < self.mean.total * _NEAR

    def log_density(self, seconds: PhaseSeconds, deviation: float) -> float:
        """Return the logarithm of the density of a step of this stratum, by a normal distribution, but for a constant.

        Of a stratum whose steps differ by less than the least change the density is that of such a change; no clock
        tells less than a nanosecond apart.
        """
        spread = max(_NANOSECOND, max(_LEAST_CHANGE, self._spread(deviation)) * self.mean.total)
        return -math.log(spread) - ((seconds.total - self.mean.total) / spread) ** 2 / 2

    def _spread(self, deviation: float) -> float:
        """Return the relative standard deviation of another step; of few steps these have at least this `deviation`."""
        own = self.deviation if len(self.later) >= _LEAST_KEPT else max(deviation, self.deviation)
        return own * math.sqrt(1 + 1 / len(self.later))


def phase_values(seconds: PhaseSeconds) -> list[float]:
    """Return the seconds of each phase, in the order of the fields."""
    return [getattr(seconds, phase) for phase in PhaseSeconds.__struct_fields__]


def fits(samples: Mapping[Stratum, StratumSamples], stratum: Stratum, seconds: PhaseSeconds, deviation: float) -> bool:
    """Return whether a step is of this stratum, and not of another level of it that is far likelier.

    Args:
        samples: of the strata.
        stratum: that it should be of.
        seconds: of the step.
        deviation: see `StratumSamples.holds`.
    """
    own, others = samples[stratum], other_levels(samples, stratum).values()
    if own.count < 2:
        return not any(other.holds(seconds, deviation) for other in others)
    likely = own.log_density(seconds, deviation) + math.log(_LIKELIER)
    return own.holds(seconds, deviation) and all(other.log_density(seconds, deviation) < likely for other in others)


def find_level(
    samples: Mapping[Stratum, StratumSamples], stratum: Stratum, steps: Sequence[PhaseSeconds], deviation: float
) -> int:
    """Return the likeliest of the other levels of a stratum that hold these steps; a new one if none does."""
    holding = {
        level: math.fsum(other.log_density(each, deviation) for each in steps)
        for level, other in other_levels(samples, stratum).items()
        if all(other.holds(each, deviation) for each in steps)
    }
    new = 1 + max(other.level for other in samples if other.size == stratum.size)
    return max(holding, key=holding.__getitem__, default=new)


def other_levels(samples: Mapping[Stratum, StratumSamples], stratum: Stratum) -> dict[int, StratumSamples]:
    """Return level -> what was counted of the same kind of steps, of the other levels that are known."""
    return {
        other.level: found
        for other, found in samples.items()
        if found.count >= 2 and other != stratum == other._replace(level=stratum.level)
    }

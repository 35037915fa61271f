"""Kinds of steps, and what was counted of each. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from scipy.special import stdtrit

from firmware_agent.common.frames.frame_fields import PhaseSeconds

# Stages: all steps but those below; those of the first federated round; copying the weights out; a drive's first steps
# of a size, for which torch and the kernel have no memory yet; those that follow them in the first round; and the steps
# that begin a later round, with a new optimiser and what the exchange has left to do.
STEADY, FIRST_ROUND, ENCODE = "steady", "first round", "encode"
STAGES = {1: "first", 2: "second"}
FIRST_STAGES = [FIRST_ROUND, FIRST_ROUND, "third", "fourth"]
ROUND_STAGES = ["first of a round", "second of a round"]
# A step lies outside its stratum if it differs by more than its interval of this level, and than so much.
_OUTSIDE, _LEAST_CHANGE = 0.999, 0.015

Size = tuple[int, int]
"""Records of a step, and how many at most are computed at a time."""


class Stratum(NamedTuple):
    """Kind of a step.

    Attributes:
        records: of the step; 0 for copying the weights out.
        micro_batch: at most so many of them are computed at a time.
        weight: cgroup weight of the task that competes.
        stage: of the job.
        level: how often the drive was seen to take another time for this size without a reason that is known.
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
            *(
                old + (new - old) / self.count
                for old, new in zip(phase_values(self.mean), phase_values(seconds), strict=True)
            )
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


def phase_values(seconds: PhaseSeconds) -> list[float]:
    """Return the seconds of each phase, in the order of the fields."""
    return [getattr(seconds, phase) for phase in PhaseSeconds.__struct_fields__]

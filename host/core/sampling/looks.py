"""Looks: short parts of steps, counted to see whether anything has changed, while later steps go on. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from host.core.sampling.strata import STAGES, Size, Stratum, StratumSamples

# In a synchronous run a look is taken every so many steps, the drives taking turns, and its seconds are known so many
# steps later.
LOOK_STEPS, LOOK_LAG = 4, 1
# A look has a half, a quarter or an eighth of the records, or all: not less than take so many seconds, in which a task
# that competes has its turn, too. Their numbers are odd, since what a machine has computed before is warm, and steps of
# batches, whose first ones are slower, are mostly even.
_LOOK_SECONDS, _PARTS = 0.015, (8, 4, 2)
# Looks that must have been taken before one tells of a change.
_KNOWN = 2


class Looks:
    """The looks of a run.

    Attributes:
        samples: stratum of a whole step -> looks at such steps.
        last_step: synchronous step in which the last one was begun, or something else said as much.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.samples: defaultdict[Stratum, StratumSamples] = defaultdict(StratumSamples)
        self.last_step = 0
        self._turn = 0
        self._records: dict[Size, int] = {}

    def due(self, step: int) -> bool:
        """Return whether a look shall be taken in a synchronous step."""
        return step - self.last_step >= LOOK_STEPS

    def next_in_turn(self, devices: Sequence[str]) -> str:
        """Return whose turn it is to be looked at."""
        self._turn += 1
        return devices[self._turn % len(devices)]

    def size(self, stratum: Stratum, seconds: float = 0.0) -> Size:
        """Return the size of looks at a step; by the first one's `seconds` it is decided once."""
        part = next((part for part in _PARTS if seconds >= part * _LOOK_SECONDS), 1)
        records = min(stratum.records, max(3, -(-stratum.records // part) | 1))
        return self._records.setdefault(stratum.size, records), stratum.micro_batch

    def take_whole(self, stratum: Stratum) -> None:
        """Look at whole steps of this size from now on: a part of one cannot be computed."""
        self._records[stratum.size] = stratum.records

    def plan(self, stratum: Stratum, counted: StratumSamples, least: int, taken: Mapping[Size, int]) -> list[int]:
        """Return the records of each look that is due at a step: of one at the whole step all, else a part.

        The whole ones come ever more seldom: the first of them find out whether steps differ, and later ones are
        needed since a machine's first dozens are slower.

        Args:
            stratum: of the step.
            counted: what was counted of it.
            least: so many steps of it are counted at first, one or more.
            taken: steps of each size that the machine has taken, whose first ones tell nothing.
        """
        size, looks = self.size(stratum, counted.mean.total), self.samples[stratum].count
        if counted.count < least + math.log2(1 + looks) or size == stratum.size:
            return [stratum.records]
        young = max(0, len(STAGES) - Counter(taken)[size])
        return [size[0]] * max(1, _KNOWN + young - looks)

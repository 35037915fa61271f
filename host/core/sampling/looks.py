"""Looks: short passes of a step's records, counted to see whether anything has changed. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.sampling.strata import STAGES, Size, Stratum, StratumSamples, fits

# In a synchronous run a look is taken every so many steps, the drives taking turns, and its seconds are known a step
# later.
LOOK_STEPS = 4
# A look is at the forward pass of as many records as take so many seconds, in which a task that competes has its turn,
# too. Where it fails, for batch normalisation wants more than one value, it has so many, and then all.
_LOOK_SECONDS, _MORE_RECORDS = 0.008, 3
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
        self._taken: Counter[Size] = Counter()

    def due(self, step: int) -> bool:
        """Return whether a look shall be taken in a synchronous step."""
        return step - self.last_step >= LOOK_STEPS

    def next_in_turn(self, devices: Sequence[str]) -> str:
        """Return whose turn it is to be looked at."""
        self._turn += 1
        return devices[self._turn % len(devices)]

    def records(self, stratum: Stratum, seconds: float = 0.0) -> int:
        """Return the records of looks at a step; by the `seconds` of its first forward pass it is decided once."""
        share = _LOOK_SECONDS / max(seconds, _LOOK_SECONDS)
        return self._records.setdefault(stratum.size, math.ceil(share * stratum.records))

    def take_more(self, stratum: Stratum) -> None:
        """Look at more records of steps of this size from now on: so few cannot be computed."""
        more = _MORE_RECORDS if self._records[stratum.size] < _MORE_RECORDS else stratum.records
        self._records[stratum.size] = min(more, stratum.records)

    def plan(self, stratum: Stratum, counted: StratumSamples, least: int) -> list[int]:
        """Return the records of each look that is due at a step, or none: then the whole step is counted.

        The whole ones come ever more seldom: the first of them find out whether steps differ, and later ones are
        needed since a machine's first dozens are slower.

        Args:
            stratum: of the step.
            counted: what was counted of it.
            least: so many steps of it are counted at first, one or more.
        """
        records, looks = self.records(stratum, counted.mean.forward), self.samples[stratum].count
        if counted.count < least + math.log2(1 + looks):
            return []
        young = max(0, len(STAGES) - self._taken[records, stratum.micro_batch])
        return [records] * max(1, _KNOWN + young - looks)

    def add(self, stratum: Stratum, seconds: PhaseSeconds, deviation: float, current: bool) -> bool:
        """Take note of a look; return whether it does not fit.

        Of a machine's first ones of a size nothing is said, nor if the drive is at another level by now (`current`);
        the first ones of a level, of which whole steps have told, are taken as they are.
        """
        size = self.records(stratum), stratum.micro_batch
        self._taken[size] += 1
        if self._taken[size] <= len(STAGES) or not current:
            return False
        if self.samples[stratum].count < _KNOWN or fits(self.samples, stratum, seconds, deviation):
            self.samples[stratum].add(seconds)
            return False
        return True

    def restart(self) -> None:
        """Take note that the machine begins anew."""
        self._taken.clear()

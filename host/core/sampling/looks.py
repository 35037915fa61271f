"""Looks: steps of few records, or their forward passes, counted to see whether anything has changed. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.step_frames import Timing
from host.core.sampling.strata import STAGES, Size, Stratum, StratumSamples, fits, other_levels

# In a synchronous run a look is taken every so many steps, the drives taking turns, and its seconds are known a step
# later.
LOOK_STEPS = 4
# A look is at as many records as take so many seconds, in which a task that competes has its turn, too: whole steps of
# them, by which the machine gets older as it does by others, or forward passes where one record takes longer. A step of
# no records would take `_STEP_SECONDS`. Where it fails, for batch normalisation wants more than one value, it has so
# many, and then all.
_LOOK_SECONDS, _STEP_SECONDS, _MORE_RECORDS = 0.008, 0.005, 3
# Looks that must have been taken before one tells of a change, unless it is like those of another level.
_KNOWN = 2


class LookKind(NamedTuple):
    """What a look computes: how much of a step of how many records."""

    records: int
    timing: Timing


class Looks:
    """The looks of a run.

    Attributes:
        samples: stratum of a whole step -> looks at such steps.
        taken: how many of each kind, and micro-batch, the machine has computed since it began.
        last_step: synchronous step in which the last one was begun, or something else said as much.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.samples: defaultdict[Stratum, StratumSamples] = defaultdict(StratumSamples)
        self.last_step = 0
        self._turn = 0
        self._chosen: dict[Size, LookKind] = {}
        self.taken: Counter[tuple[LookKind, int]] = Counter()
        self._doubted: Counter[Stratum] = Counter()

    def next_in_turn(self, devices: Sequence[str]) -> str:
        """Return whose turn it is to be looked at."""
        self._turn += 1
        return devices[self._turn % len(devices)]

    def choose(self, stratum: Stratum, seconds: PhaseSeconds) -> LookKind:
        """Return the looks at a step; by the `seconds` of its first ones it is decided once.

        The records of whole steps are odd, for those of batches, whose first ones are slower, are mostly even.
        """
        whole = seconds.total <= _LOOK_SECONDS * stratum.records
        fixed, part = (_STEP_SECONDS, seconds.total) if whole else (0.0, seconds.forward)
        records = math.ceil(stratum.records / max(1.0, (part - fixed) / (_LOOK_SECONDS - fixed))) | whole
        return self._chosen.setdefault(
            stratum.size, LookKind(min(stratum.records, records), "whole" if whole else "forward")
        )

    def take_more(self, stratum: Stratum) -> None:
        """Look at more records of steps of this size from now on: so few cannot be computed."""
        look = self._chosen[stratum.size]
        self._chosen[stratum.size] = look._replace(
            records=stratum.records if look.records >= _MORE_RECORDS else min(_MORE_RECORDS, stratum.records)
        )

    def plan(self, stratum: Stratum, counted: StratumSamples, least: int) -> list[LookKind]:
        """Return the looks that are due at a step, or none: then the whole step is counted.

        The whole ones come ever more seldom: the first of them find out whether steps differ, and later ones are
        needed since a machine's first dozens are slower.

        Args:
            stratum: of the step.
            counted: what was counted of it.
            least: so many steps of it are counted at first, one or more.
        """
        look, looks = self.choose(stratum, counted.mean), self.samples[stratum].count
        if counted.count < least + math.log2(1 + looks):
            return []
        return [look] * max(1, _KNOWN - looks + max(0, len(STAGES) - self.taken[look, stratum.micro_batch]))

    def add(
        self,
        stratum: Stratum,
        seconds: PhaseSeconds,
        deviation: float,
        current: bool,
        counted: Mapping[Stratum, StratumSamples],
    ) -> bool:
        """Take note of a look; return whether it does not fit.

        Of a machine's first ones of a size nothing is said, nor if the drive is at another level by now (`current`);
        the first ones of a level, of which whole steps have told, are taken as they are, but that two of them are
        doubted if they are like those of a level whose whole steps, of those `counted`, are quite another length.
        """
        kind = self._chosen[stratum.size], stratum.micro_batch
        self.taken[kind] += 1
        if self.taken[kind] <= len(STAGES) or not current:
            return False
        if (
            fits(self.samples, stratum, seconds, deviation)
            if self.samples[stratum].count >= _KNOWN
            else self._doubted[stratum] >= _KNOWN
            or not any(
                other.is_near(seconds) and not counted[stratum._replace(level=level)].is_near(counted[stratum].mean)
                for level, other in other_levels(self.samples, stratum).items()
            )
        ):
            self.samples[stratum].add(seconds)
            return False
        self._doubted[stratum] += 1
        return True

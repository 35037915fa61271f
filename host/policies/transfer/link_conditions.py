"""Estimates of link and drives from noisy measurements: levels that follow a change at once. Pure.

Each figure x is followed as its logarithm. A measurement that is further from the level than `JUMP` and than
`DEVIATIONS` times the noise is a suspicion. `CONFIRM` of them in a row on the same side are a change, and the level
becomes their mean: nothing of before is left in it. One that is beyond `SURE_JUMP` and `SURE_DEVIATIONS` is a change at
once: steps lost to waiting cost more than going back after a blip. Else the level is the mean of what came since the
last change, over at most `MEMORY` steps, so that it follows a slow walk; over more where nothing walks (round trip,
cost of a slice). The noise is learnt from differences of neighbours, which see neither a level nor a walk; a difference
counts three times the present noise at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from csd_emu.perfmodel.overlap.layer_work import Costs, compute_seconds, scale_compute
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from host.policies.transfer.transfer_tuner import StepSeen

JUMP = 0.2
DEVIATIONS = 4.0
CONFIRM = 2
SURE_JUMP, SURE_DEVIATIONS = 0.4, 7.0
MEMORY, LONG_MEMORY = 12, 64
NOISE_START, NOISE_FLOOR, NOISE_MEMORY = 0.05, 0.005, 16
# The mean of |difference| of two normal numbers, in standard deviations of one.
_MEAN_DIFFERENCE = 1.128
# What a figure is taken for until it is measured: a relay in user space on both ends (docs/communication-tuning.md).
ASSUMED_RTT_SECONDS, ASSUMED_SLICE_SECONDS = 1e-3, 4e-4
# Zero has no logarithm; a figure below this makes no difference to a step.
LEAST_SECONDS = 1e-7
# Compute seconds that have moved by less, as a log, are taken for the same.
COMPUTE_STEP = 0.05


@dataclass(frozen=True)
class Conditions:
    """What a step's length depends on beside the setting.

    Attributes:
        costs: of the slowest participant, the load on it counted.
        participants: how many drives share the link.
        link: as it is now, storage traffic taken off.
        block_bytes: the host steps so many bytes at once, whatever the slice size.
    """

    costs: Costs
    participants: int
    link: SharedLink
    block_bytes: int = BLOCK_BYTES


class Level:
    """The logarithm of one figure.

    Attributes:
        value: what is believed; NaN before the first measurement.
        noise: standard deviation of a measurement.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self.value, self.noise, self._memory = math.nan, NOISE_START, memory
        self._count, self._previous = 0, math.nan
        self._run: list[float] = []

    def observe(self, figure: float) -> bool:
        """Take a measurement, NaN for none; return whether it was the last of a change."""
        if math.isnan(figure):
            return False
        x = math.log(figure)
        if not self._count:
            self.value, self._count, self._previous = x, 1, x
            return True
        residual = x - self.value
        if abs(residual) > max(JUMP, DEVIATIONS * self.noise):
            return self._suspect(x, residual)
        self._run.clear()
        self._learn_noise(x)
        self._count = min(self._count + 1, self._memory)
        self.value += residual / self._count
        return False

    def _suspect(self, x: float, residual: float) -> bool:
        if self._run and (self._run[-1] - self.value) * residual < 0:
            self._run.clear()
        self._run.append(x)
        self._previous = math.nan
        sure = abs(residual) > max(SURE_JUMP, SURE_DEVIATIONS * self.noise)
        if len(self._run) < CONFIRM and not sure:
            return False
        self.value, self._count = sum(self._run) / len(self._run), len(self._run)
        self._run.clear()
        return True

    def _learn_noise(self, x: float) -> None:
        if not math.isnan(self._previous):
            difference = min(abs(x - self._previous) / _MEAN_DIFFERENCE, 3 * self.noise)
            self.noise = max(NOISE_FLOOR, self.noise + (difference - self.noise) / NOISE_MEMORY)
        self._previous = x


class Watch:
    """Follows the conditions of a run.

    Attributes:
        jumps: how often something changed at once; what was seen before the last of them says nothing any more.
    """

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        """Know nothing yet but how many bytes the host steps at once."""
        self._block_bytes = block_bytes
        self._bandwidth, self._compute = Level(), Level()
        self._rtt, self._slice = Level(LONG_MEMORY), Level(LONG_MEMORY)
        # As they were measured once, and as they are believed: scaled to the seconds that are believed.
        self._measured: Costs = ()
        self._believed: Costs = ()
        self._participants = 0

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of a measured bandwidth."""
        return self._bandwidth.noise

    def observe(self, seen: StepSeen) -> bool:
        """Take a step; return whether anything jumped."""
        other_costs = not _same_tensors(seen.costs, self._measured)
        jumped = seen.participants != self._participants
        self._participants = seen.participants
        rtt, slice_seconds = _mean(seen.rtt_seconds), seen.slice_seconds
        figures = (
            (self._bandwidth, seen.participants * _mean(seen.bytes_per_second)),
            (self._rtt, max(rtt, LEAST_SECONDS) if rtt == rtt else rtt),
            (self._slice, max(slice_seconds, LEAST_SECONDS) if slice_seconds == slice_seconds else slice_seconds),
        )
        jumped |= any([level.observe(figure) for level, figure in figures])
        other_costs |= self._compute.observe(max(compute_seconds(seen.costs) * seen.load, LEAST_SECONDS))
        self._follow_costs(seen.costs, other_costs)
        jumped |= other_costs
        return jumped

    def conditions(self) -> Conditions | None:
        """Return what is believed now; None while no bandwidth was measured."""
        if math.isnan(self._bandwidth.value):
            return None
        link = SharedLink(
            math.exp(self._bandwidth.value),
            _exp_or(self._rtt.value, ASSUMED_RTT_SECONDS) / 2,
            _exp_or(self._slice.value, ASSUMED_SLICE_SECONDS),
        )
        return Conditions(self._believed, self._participants, link, self._block_bytes)

    def logs(self) -> tuple[float, ...]:
        """Return the logarithms of all that is followed, 0 for what was never measured: to tell how far it moved."""
        levels = (self._bandwidth, self._rtt, self._slice, self._compute)
        return tuple(0.0 if math.isnan(level.value) else level.value for level in levels)

    def _follow_costs(self, costs: Costs, anew: bool) -> None:
        """Scale the costs when their seconds have moved by a few percent: predictors keep what they worked out of them.

        Args:
            costs: as they were measured in this step, a little different each time.
            anew: whether they are to be taken instead of those of before.
        """
        if anew:
            self._measured, self._believed = costs, ()
        believed = compute_seconds(self._believed)
        seconds = math.exp(self._compute.value)
        if not believed or abs(math.log(seconds / believed)) > COMPUTE_STEP:
            measured = compute_seconds(self._measured)
            self._believed = scale_compute(self._measured, seconds / measured) if measured else self._measured


def _same_tensors(one: Costs, other: Costs) -> bool:
    return one is other or [layer.tensors for layer in one] == [layer.tensors for layer in other]


def _mean(figures: Sequence[float]) -> float:
    """Return the mean of those that were measured; NaN if none was."""
    measured = [figure for figure in figures if not math.isnan(figure)]
    return sum(measured) / len(measured) if measured else math.nan


def _exp_or(value: float, assumed: float) -> float:
    return assumed if math.isnan(value) else math.exp(value)

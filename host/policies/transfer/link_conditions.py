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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import Costs, DriveTransfers, compute_seconds, scale_compute
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.slice_costs import LinkFit, SliceTable
from host.policies.transfer.transfer_tuner import StepSeen

JUMP = 0.2
DEVIATIONS = 4.0
CONFIRM = 2
SURE_JUMP, SURE_DEVIATIONS = 0.4, 7.0
MEMORY = 12
NOISE_START, NOISE_FLOOR, NOISE_MEMORY = 0.05, 0.005, 16
# The mean of |difference| of two normal numbers, in standard deviations of one.
_MEAN_DIFFERENCE = 1.128
# What a slice is taken to cost until one was seen: a relay in user space on both ends (docs/communication-tuning.md).
ASSUMED_SLICE_SECONDS = 4e-4
# Zero has no logarithm; a figure below this makes no difference to a step.
LEAST_SECONDS = 1e-7
# Figures that have moved by less, as a log, are taken for the same; what a slice costs, beside so many bytes.
BELIEF_STEP, NOTICED_BYTES = 0.25, 16 << 10
# It is in doubt what slices cost if it may be more by this share of what they take.
DOUBT = 0.3
# A drive that is so much worse than another one, or less, is not worse.
NEARLY = 1.25


class DriveConditions(NamedTuple):
    """What one drive computes, the load on it counted, and what it has of the link while the others send, too."""

    costs: Costs
    own: OwnLink


@dataclass(frozen=True, eq=False)
class Conditions:
    """What a step's length depends on beside the setting.

    Attributes:
        costs: of the slowest participant, the load on it counted.
        participants: how many drives share the link.
        link: as it is now for all together, storage traffic taken off; of what is unlike, the mean.
        block_bytes: the host steps so many bytes at once, whatever the slice size.
        drives: that are unlike, those left out that no other drive waits for; none if all are alike.
        doubt: the same if slices cost as much, and their bytes as little, as measurements allow; None if that is clear.
    """

    costs: Costs
    participants: int
    link: SharedLink
    block_bytes: int = BLOCK_BYTES
    drives: tuple[DriveConditions, ...] = ()
    doubt: Conditions | None = None


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

    @property
    def begun(self) -> bool:
        """Whether there was a measurement."""
        return self._count > 0

    def forget(self) -> None:
        """Have the next measurement be the first one; the noise stays."""
        self._count = 0
        self._run.clear()

    def observe(self, figure: float) -> bool:
        """Take a measurement; return whether it was the last of a change."""
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


class _DriveWatch:
    """Follows one drive: what it computes, and what its slices cost."""

    def __init__(self) -> None:
        self.fit, self.compute = LinkFit(ASSUMED_SLICE_SECONDS), Level()
        # Of a byte, with each setting: slices of other sizes take other seconds, and may be off any line.
        self._wires = dict[TransferSettings, Level]()
        self._measured: Costs = ()

    def observe(self, seen: DriveTransfers, table: SliceTable, sending: TransferSettings) -> bool:
        """Take a step, and the table of its slices; return whether anything jumped."""
        if anew := seen.costs is not self._measured and (
            [layer.tensors for layer in seen.costs] != [layer.tensors for layer in self._measured]
        ):
            self.compute.forget()
        anew |= self.compute.observe(max(compute_seconds(seen.costs), LEAST_SECONDS))
        if anew:
            self._measured = seen.costs
        if not len(table.rows):
            return anew
        known = self.fit.known
        wire = self._wires.setdefault(sending, Level())
        begins = not wire.begun
        jumped = wire.observe(table.seconds_per_byte()) and not begins
        if jumped:
            self.fit.forget()
            self._wires.clear()
        self.fit.observe(table)
        return anew or jumped or not known

    @property
    def doubtful(self) -> bool:
        """Whether much more of what slices take may be their own than is believed."""
        return bool(self.fit.doubt()[0] - self.fit.seconds[0] > DOUBT * self.fit.usual_seconds)

    def conditions(self, doubt: bool) -> DriveConditions:
        """Return what is believed; or, where there is `doubt`, what else may be."""
        slice_seconds, byte_seconds, _, pull = self.fit.doubt() if doubt and self.doubtful else self.fit.seconds
        own = OwnLink(1 / float(byte_seconds), float(pull) / 2, float(slice_seconds))
        measured = compute_seconds(self._measured)
        factor = math.exp(self.compute.value) / measured if measured else 1.0
        return DriveConditions(scale_compute(self._measured, factor), own)

    def logs(self) -> list[float]:
        """Return the logarithms of what is believed of compute, a byte, a slice and the round trip.

        That of a slice and of the round trip are as far as they matter: beside the bytes of a slice.
        """
        slice_seconds, byte_seconds, _, pull = self.fit.seconds
        beside = byte_seconds * NOTICED_BYTES
        return [self.compute.value, *np.log([byte_seconds, slice_seconds + beside, pull + beside])]


class Watch:
    """Follows the conditions of a run.

    Attributes:
        steps: that it has seen, of a resumed run since then.
    """

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        """Know nothing yet but how many bytes the host steps at once."""
        self._block_bytes, self.steps = block_bytes, 0
        self._drives: list[_DriveWatch] = []
        self._believed: Conditions | None = None
        self._believed_logs: npt.NDArray[np.float64] = np.zeros(0)

    def observe(self, seen: StepSeen) -> bool:
        """Take a step; return whether anything jumped."""
        self.steps += 1
        if jumped := len(seen.drives) != len(self._drives):
            self._drives = [_DriveWatch() for _ in seen.drives]
        # Those of drives that are alike are composed once, and are one object.
        tables = {key: SliceTable.of(slices) for key, slices in {id(e.slices): e.slices for e in seen.drives}.items()}
        pairs = zip(self._drives, seen.drives, strict=True)
        jumped |= any([watch.observe(each, tables[id(each.slices)], seen.sending) for watch, each in pairs])
        if jumped:
            self._believed = None
        return jumped

    def conditions(self) -> Conditions | None:
        """Return what is believed, the same object until it has moved by a few percent; None before any slice."""
        if not self._drives or not all(each.fit.known for each in self._drives):
            return None
        logs = self.logs()
        doubtful = any(each.doubtful for each in self._drives)
        same = self._believed is not None and doubtful == (self._believed.doubt is not None)
        if not same or np.abs(logs - self._believed_logs).max() > BELIEF_STEP:
            self._believed, self._believed_logs = self._believe(self._believe(None, True) if doubtful else None), logs
        return self._believed

    def logs(self) -> npt.NDArray[np.float64]:
        """Return the logarithms of all that is followed: to tell how far it moved."""
        return np.concatenate([each.logs() for each in self._drives])

    def _believe(self, doubt: Conditions | None, as_doubted: bool = False) -> Conditions:
        drives = [each.conditions(as_doubted) for each in self._drives]
        own = [each.own for each in drives]
        link = SharedLink(
            sum(each.bytes_per_second for each in own),
            fmean(each.latency_seconds for each in own),
            fmean(each.slice_seconds for each in own),
        )
        slowest = max((each.costs for each in drives), key=compute_seconds)
        return Conditions(slowest, len(drives), link, self._block_bytes, tuple(_waited_for(drives)), doubt)


def _waited_for(drives: Sequence[DriveConditions]) -> Iterator[DriveConditions]:
    """Yield those drives that are worse in something than each of the others before them, the slowest links first."""
    kept: list[tuple[float, ...]] = []
    for each in sorted(drives, key=lambda drive: drive.own.bytes_per_second):
        own, beside = each.own, NOTICED_BYTES / each.own.bytes_per_second
        figures = (beside, own.latency_seconds + beside, own.slice_seconds + beside, compute_seconds(each.costs))
        # What is nearly as bad is as bad.
        if not any(all(f <= NEARLY * o for f, o in zip(figures, others, strict=True)) for others in kept):
            kept.append(figures)
            yield each

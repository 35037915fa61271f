"""Batches with which devices of several classes finish a step together, as STANNIS chooses them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from host.core.tuning.batch_tuner import Batches, Floats
from host.core.tuning.speed_table import SpeedTable

# Steps in which compute seconds differ by no more are as good as equal.
BALANCED = 0.02
# To find such a step the slow device's batch may grow to so many times its knee, and in any case to so many records.
_GROWTH, _REACH = 2, 16
# A batch that ends at a target is done by then, whatever the last digit of a quotient.
_ROUNDING = 1 + 1e-9
# A shorter step must be faster by more than this share, which tables' errors reach (bench `calibration`).
WORTH_SHORTENING = 0.01


class PaceSettings(Protocol):
    """How batches are chosen; a job's section ``sync.tuning`` has it."""

    @property
    def knee(self) -> float:
        """Share of its best rate that a device may lose to a smaller batch."""

    @property
    def slow_batch(self) -> int | None:
        """Batch of the slow device; None to choose it."""

    @property
    def margin(self) -> float:
        """Share of the slow device's seconds by which the others finish earlier."""


def plan_classes(
    classes: Sequence[SpeedTable],
    counts: Sequence[int],
    settings: PaceSettings,
    sync_seconds: float = 0.0,
    record_seconds: float = 0.0,
) -> tuple[Batches, int]:
    """Return the batch of a device of each class, and which class is the slow one.

    The slow one takes longest at its own knee, so no device has to work below its knee. Of its batches from the knee
    to twice the knee (or 16), at which neither it nor all together, the exchange included, are slower than the knee
    allows, the smallest is taken with which all finish within `BALANCED` of each other; if none does, the one nearest
    to it. A shorter step is taken if it is faster in all, and where memory bounds a class a longer one may be: see
    `_shorter` and `_longer`. With `slow_batch` neither is looked for.

    Args:
        classes: all different, at least one.
        counts: devices of each, at least 1.
        settings: knee, slow_batch and margin.
        sync_seconds: what the exchange adds to each step.
        record_seconds: what each record of all devices adds beside.
    """
    slow = max(range(len(classes)), key=lambda number: classes[number].seconds(classes[number].knee(settings.knee)))
    shares = [1.0 if table is classes[slow] else 1 - settings.margin for table in classes]
    steps = _Steps(classes, counts, shares, sync_seconds, record_seconds)
    candidates = _candidates(classes[slow], settings, sync_seconds)
    looked_at = steps.finished_by(classes[slow].step_seconds[candidates - 1])
    batches = looked_at[:, _choose(*steps.cost(looked_at), settings.knee)]
    if settings.slow_batch is not None:
        return batches, slow
    batches = _shorter(steps, batches)
    # By memory: it keeps a device from the most records, or ends so near its knee that the knee is the end's.
    bounded = any(
        table.largest_batch <= max(most, _GROWTH * _reach(table.knee(settings.knee)))
        for table, most in zip(classes, looked_at[:, -1], strict=True)
    )
    return _longer(steps, batches, settings.knee) if bounded else batches, slow


class _Steps:
    """Steps of devices that compute as many records as they can by some time."""

    def __init__(
        self,
        classes: Sequence[SpeedTable],
        counts: Sequence[int],
        shares: Sequence[float],
        sync_seconds: float,
        record_seconds: float,
    ) -> None:
        """Take what `plan_classes` is given, and by which share of the slow class's seconds each class ends."""
        self.curves, self._shares = [table.step_seconds for table in classes], shares
        self._counts, self._sync_seconds, self._record_seconds = np.array(counts), sync_seconds, record_seconds

    def finished_by(self, targets: Floats) -> Batches:
        """Return (classes, targets) records that a device of each class finishes by each time, at least 1."""
        done = [
            np.searchsorted(curve, share * targets * _ROUNDING, side="right")
            for curve, share in zip(self.curves, self._shares, strict=True)
        ]
        return np.maximum(1, np.stack(done)).astype(np.int64)

    def until(self, largest: Batches) -> Batches:
        """Return (classes, steps) batches: all that differ, of steps in which no class has more than its `largest`."""
        ends = [curve[:most] / share for curve, most, share in zip(self.curves, largest, self._shares, strict=True)]
        return self.finished_by(np.unique(np.concatenate(ends)))

    def cost(self, batches: Batches) -> tuple[Floats, Floats]:
        """Return (steps,) records per second, and (classes, steps) compute seconds, of (classes, steps) batches."""
        seconds = np.stack([curve[own - 1] for curve, own in zip(self.curves, batches, strict=True)])
        records = self._counts @ batches
        return records / (seconds.max(axis=0) + self._sync_seconds + self._record_seconds * records), seconds


def _candidates(slow: SpeedTable, settings: PaceSettings, sync_seconds: float) -> Batches:
    """Return the batches of the slow device that are looked at, in order."""
    if settings.slow_batch is not None:
        slow.seconds(settings.slow_batch)  # refuses one that does not fit
        return np.array([settings.slow_batch])
    knee = slow.knee(settings.knee)
    batches = np.arange(knee, min(_reach(knee), slow.largest_batch) + 1)
    rates = batches / (slow.step_seconds[batches - 1] + sync_seconds)
    return np.asarray(batches[rates >= (1 - settings.knee) * rates.max()])


def _reach(knee: int) -> int:
    return max(_GROWTH * knee, _REACH)


def _choose(rates: Floats, seconds: Floats, tolerance: float) -> int:
    """Return the number of the candidate to take.

    Args:
        rates: (candidates,) records per second.
        seconds: (classes, candidates) compute seconds.
        tolerance: candidates with a rate within this share of the best one's are equally good.
    """
    imbalances = 1 - seconds.min(axis=0) / seconds.max(axis=0)
    imbalances[rates < (1 - tolerance) * rates.max()] = np.inf
    balanced = np.flatnonzero(imbalances <= BALANCED)
    return int(balanced[0] if len(balanced) else imbalances.argmin())


def _shorter(steps: _Steps, batches: Batches) -> Batches:
    """Return the batches of the fastest of all shorter steps, if it gains more than `WORTH_SHORTENING`; else `batches`.

    Where a class stands at its memory's limit, the others wait for no one in it; where a curve jumps, one that has just
    crossed its jump does less for the time.
    """
    shorter = steps.until(batches)
    rates, (own, _) = steps.cost(shorter)[0], steps.cost(batches[:, None])
    return shorter[:, rates.argmax()] if rates.max() > (1 + WORTH_SHORTENING) * own[0] else batches


def _longer(steps: _Steps, batches: Batches, tolerance: float) -> Batches:
    """Return `batches` if they are within `tolerance` of the best rate of all, else the shortest step that is.

    The knee of a class whose memory bounds it says nothing of what the others, and the exchange, gain by longer steps.
    """
    every = steps.until(np.array([len(curve) for curve in steps.curves]))
    rates, (own, _) = steps.cost(every)[0], steps.cost(batches[:, None])
    enough = rates >= (1 - tolerance) * rates.max()
    return batches if own[0] >= (1 - tolerance) * rates.max() else every[:, enough.argmax()]

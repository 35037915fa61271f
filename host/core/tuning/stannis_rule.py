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
    classes: Sequence[SpeedTable], counts: Sequence[int], settings: PaceSettings, sync_seconds: float = 0.0
) -> tuple[Batches, int]:
    """Return the batch of a device of each class, and which class is the slow one.

    The slow one takes longest at its own knee, so no device has to work below its knee. Of its batches from the knee
    to twice the knee (or 16), at which neither it nor all together, the exchange included, are slower than the knee
    allows, the smallest is taken with which all finish within `BALANCED` of each other; if none does, the one nearest
    to it.

    Args:
        classes: all different, at least one.
        counts: devices of each, at least 1.
        settings: knee, slow_batch and margin.
        sync_seconds: what the exchange adds to each step.
    """
    slow = max(classes, key=lambda table: table.seconds(table.knee(settings.knee)))
    batches = _candidates(slow, settings, sync_seconds)
    shares = np.stack([_filled(table, slow, batches, settings.margin) for table in classes])
    seconds = np.stack([table.step_seconds[share - 1] for table, share in zip(classes, shares, strict=True)])
    chosen = _choose(np.array(counts) @ shares, seconds, settings.knee, sync_seconds)
    return shares[:, chosen], next(number for number, table in enumerate(classes) if table is slow)


def _candidates(slow: SpeedTable, settings: PaceSettings, sync_seconds: float) -> Batches:
    """Return the batches of the slow device that are looked at, in order."""
    if settings.slow_batch is not None:
        slow.seconds(settings.slow_batch)  # refuses one that does not fit
        return np.array([settings.slow_batch])
    knee = slow.knee(settings.knee)
    batches = np.arange(knee, min(max(_GROWTH * knee, _REACH), slow.largest_batch) + 1)
    rates = batches / (slow.step_seconds[batches - 1] + sync_seconds)
    return np.asarray(batches[rates >= (1 - settings.knee) * rates.max()])


def _filled(table: SpeedTable, slow: SpeedTable, slow_batches: Batches, margin: float) -> Batches:
    """Return the batch of a device for each batch of the slow one."""
    if table is slow:
        return slow_batches
    targets = (1 - margin) * slow.step_seconds[slow_batches - 1]
    return np.maximum(1, np.searchsorted(table.step_seconds, targets, side="right")).astype(np.int64)


def _choose(totals: Batches, seconds: Floats, tolerance: float, sync_seconds: float) -> int:
    """Return the number of the candidate to take.

    Args:
        totals: (candidates,) records of a step.
        seconds: (classes, candidates) compute seconds.
        tolerance: candidates with a rate within this share of the best one's are equally good.
        sync_seconds: added to each step.
    """
    longest = seconds.max(axis=0)
    rates = totals / (longest + sync_seconds)
    imbalances = 1 - seconds.min(axis=0) / longest
    imbalances[rates < (1 - tolerance) * rates.max()] = np.inf
    balanced = np.flatnonzero(imbalances <= BALANCED)
    return int(balanced[0] if len(balanced) else imbalances.argmin())

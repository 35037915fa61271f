"""Equal batches: the baseline that STANNIS's are compared with. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.stannis import BatchPlan, cost_batches


def plan_equal(tables: Sequence[SpeedTable], global_batch: int, sync_seconds: float = 0.0) -> BatchPlan:
    """Return the same global batch, dealt out equally whatever the devices are.

    Batches differ by one record at most, but a device gets no more than it can hold, and at least 1.

    Args:
        tables: of each device, at least one.
        global_batch: records of a step, of all devices together.
        sync_seconds: what the exchange adds to each step.
    """
    share, more = divmod(global_batch, len(tables))
    batches = [min(max(1, share + (number < more)), table.largest_batch) for number, table in enumerate(tables)]
    return cost_batches(tables, batches, sync_seconds)

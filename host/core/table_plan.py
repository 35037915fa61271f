"""Plan of a calibration table: which batch sizes to measure of a model, and about how long that takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firmware_agent.common.frames.frame_fields import WARM_UP_STEPS
from firmware_agent.common.layer_costs import LayerWork

# A batch is measured for so many counted seconds, of at most so many steps.
MEASURE_SECONDS, MAX_STEPS = 1.0, 32
# From the shipped tables: the reference core does 0.5 to 3.9 G operations a counted second, most models 1 to 3. A
# batch takes some six wall seconds a counted one on two cores, and the machine ten seconds.
_OPERATIONS_PER_SECOND, _WALL_PER_COUNTED, _START_SECONDS = 1.5e9, 6.0, 10.0
# Both ends of each range in which torch runs the same kernels (see `csd_emu.profiles.calibration.table_fit`), and the
# middle of the second one.
_SMALLER_BATCHES = (1, 2, 5, 15, 16)
# Longer steps are extrapolated from shorter ones.
_MOST_STEP_SECONDS = 2.0


class TablePlan(NamedTuple):
    """What to measure.

    Attributes:
        batches: the job's batch size, or as much of it as keeps a step short, and a few below it, increasing.
        wall_seconds: about how long it takes.
    """

    batches: tuple[int, ...]
    wall_seconds: float


def plan_table(works: Sequence[LayerWork], batch_size: int) -> TablePlan:
    """Return what to measure of a model that is trained in batches of `batch_size`; `works` are of one record."""
    operations = sum(work.forward_operations + work.backward_operations for work in works)
    record_seconds = max(1e-9, operations / _OPERATIONS_PER_SECOND)
    most = max(2, int(min(batch_size, _MOST_STEP_SECONDS / record_seconds)))
    batches = (*(size for size in _SMALLER_BATCHES if size < most), most)
    steps = [(size * record_seconds, min(MAX_STEPS, 1 + MEASURE_SECONDS / (size * record_seconds))) for size in batches]
    counted = sum(seconds * (count + WARM_UP_STEPS) for seconds, count in steps)
    return TablePlan(batches, _START_SECONDS + _WALL_PER_COUNTED * counted)

"""Equal batches: dealt out whole, and never better than STANNIS's where devices differ in speed alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.tune.equal_batches import plan_equal
from host.config.sync_section import TuningSection
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.stannis import plan_batches
from tests.support.tuning import line, speed_tables


@pytest.mark.slow
@given(st.lists(speed_tables(), min_size=1, max_size=6), st.integers(1, 300))
def test_the_equal_baseline_deals_the_global_batch_out(tables: list[SpeedTable], total: int) -> None:
    plan = plan_equal(tables, total)
    assert all(1 <= b <= table.largest_batch for b, table in zip(plan.batches, tables, strict=True))
    if total >= len(tables) and all(table.largest_batch > total // len(tables) for table in tables):
        assert plan.batches.sum() == total
        assert plan.batches.max() - plan.batches.min() <= 1
    assert plan.step_seconds == max(table.seconds(batch) for table, batch in zip(tables, plan.batches, strict=True))


@given(st.lists(st.floats(1, 30), min_size=1, max_size=5), st.floats(0, 5), st.floats(1e-3, 1))
def test_batches_that_finish_together_are_no_slower(speeds: list[float], fixed: float, slope: float) -> None:
    tables = [line(f"x{speed}", fixed * slope / speed, slope / speed, 8192) for speed in speeds]
    plan = plan_batches(tables, TuningSection())
    assert plan.records_per_second >= plan_equal(tables, int(plan.batches.sum())).records_per_second * (1 - 1e-9)

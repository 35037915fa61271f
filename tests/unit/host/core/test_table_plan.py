"""Which batches are measured of a model that no table has."""

from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles.calibration.table_fit import has_kernels
from firmware_agent.common.layer_costs import LayerWork
from host.core.table_plan import plan_table

OPERATIONS = st.floats(0, 1e14)


def works(operations: float) -> list[LayerWork]:
    return [LayerWork("", {}, operations, 2 * operations)]


@given(operations=OPERATIONS, batch_size=st.integers(1, 65536))
def test_rows_in_each_range_of_kernels_up_to_the_jobs_batch_if_a_step_of_it_is_short(
    operations: float, batch_size: int
) -> None:
    plan = plan_table(works(operations), batch_size)
    most = plan.batches[-1]
    assert plan.batches == tuple(sorted({size for size in (1, 2, 5, 15, 16) if size < most} | {most}))
    assert all(has_kernels(plan.batches, size) for size in range(1, most))
    assert 2 <= most <= max(2, batch_size)
    if operations * batch_size < 1e8:
        assert most == max(2, batch_size)
    assert plan.wall_seconds > 0


@given(operations=OPERATIONS, more=st.floats(1, 1e3), batch_size=st.integers(1, 4096))
def test_a_larger_model_is_measured_in_no_larger_batches(operations: float, more: float, batch_size: int) -> None:
    small, large = plan_table(works(operations), batch_size), plan_table(works(operations * more), batch_size)
    assert large.batches[-1] <= small.batches[-1]


def test_a_small_model_costs_less_than_a_minute_and_a_large_one_says_that_it_takes_many() -> None:
    assert plan_table(works(1e6), 64).wall_seconds < 60
    assert plan_table(works(3e10), 32).wall_seconds > 600

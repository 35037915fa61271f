"""The critical batch is read from records until a loss."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.planner.planner_learning import fit_critical_batch, measure


@given(st.floats(1, 1e5), st.floats(1, 1e6))
def test_it_is_what_the_records_were_made_with(critical: float, least: float) -> None:
    records = {batch: least * (1 + batch / critical) for batch in (8, 32, 128, 512)}
    assert fit_critical_batch(records) == pytest.approx(critical, rel=1e-4)


def test_batches_that_need_no_more_records_have_no_critical_one() -> None:
    assert fit_critical_batch({8: 100.0, 16: 90.0}) == math.inf
    assert math.isnan(fit_critical_batch({8: 10.0, 16: 100.0}))


@pytest.mark.slow
def test_larger_steps_of_the_digits_need_more_records() -> None:
    records = measure((32, 256), (0.05,), (0,))
    assert records[32] < records[256]

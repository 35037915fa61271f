"""Curves of devices' seconds, as believed after trials."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.costs.speed_curves import fit_curve
from tests.support.planner_clusters import make_cluster

# Up to 200 records there is overhead; from there to the largest batch the rate rises by 5 %, ever more slowly.
BATCHES = np.arange(1, 16385)
RATES = 1000 * (1 + 0.05 * np.log(np.maximum(BATCHES, 200) / 200) / np.log(16384 / 200))
FLAT = SpeedTable("flat", np.where(BATCHES < 200, 0.05 + 0.00075 * BATCHES, BATCHES / RATES))
KIND = replace(make_cluster([1], host=False).kinds[0], speed=FLAT)


def believed(batches: list[int], ratios: list[float]) -> SpeedTable:
    """The table after trials with these batches took so many times as long as its own seconds, exactly."""
    seen = np.array(batches, np.float64)
    few = np.full(len(seen), 0.005)
    return fit_curve(KIND, FLAT, 200.0, seen, np.ones(len(seen)), np.log(ratios), few).table


@given(
    st.lists(st.integers(1, 16384), min_size=1, max_size=5, unique=True),
    st.floats(0.4, 4),
    st.lists(st.floats(0.998, 1.002), min_size=5, max_size=5),
)
def test_batches_that_nobody_has_seen_are_not_believed_to_be_quicker_than_the_nearest_that_was(
    batches: list[int], slowdown: float, noise: list[float]
) -> None:
    fitted = believed(batches, [slowdown * each for each in noise[: len(batches)]])
    factors = fitted.step_seconds / FLAT.step_seconds
    low, high = min(batches) - 1, max(batches) - 1
    assert (factors[:low] >= factors[low] * (1 - 1e-9)).all()
    assert (factors[high:] >= factors[high] * (1 - 1e-9)).all()


@pytest.mark.parametrize("slowdown", [1.2, 1.74, 3.0])
def test_a_factor_that_holds_at_all_batches_leaves_the_knee_where_it_is(slowdown: float) -> None:
    """A percent that was taken off at batches nobody had seen made it thirty times as large, trial after trial."""
    batches = [150, 231, 275, 313]
    fitted = believed(batches, [slowdown * each for each in (1.0, 1.002, 0.999, 1.0)])
    assert FLAT.knee(0.05) / 2 <= fitted.knee(0.05) <= 2 * FLAT.knee(0.05)

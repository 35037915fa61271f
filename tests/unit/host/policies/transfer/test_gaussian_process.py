"""What a Gaussian process says of places: laws that hold whatever was measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.policies.transfer.gaussian_process import Posterior, infer

POINTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12, unique=True)


@given(POINTS, st.integers(0, 2**32 - 1))
def test_what_is_believed_stays_near_what_was_measured_and_less_is_known_further_away(
    places: list[tuple[int, int]], seed: int
) -> None:
    points = np.array(places, dtype=float)
    values = np.random.default_rng(seed).normal(0.0, 0.1, len(points))
    there, away = infer(points, values, points), infer(points, values, points + 1e3)
    assert np.all(np.abs(there.means - values.mean()) <= np.ptp(values) + 1e-9)
    assert np.all(there.deviations <= away.deviations + 1e-9)
    assert away.means == pytest.approx(np.full(len(points), values.mean()))


def test_a_smooth_law_is_followed_and_noise_is_smoothed() -> None:
    axis = np.linspace(0, 8, 9)
    points = np.stack([axis, np.zeros(9)], axis=1)
    law = 0.02 * (axis - 3) ** 2
    noise = np.random.default_rng(1).normal(0.0, 0.02, 9)
    assert infer(points, law, points).means == pytest.approx(law, abs=2e-3)
    believed = infer(points, law + noise, points).means
    assert np.sqrt(np.mean((believed - law) ** 2)) < np.sqrt(np.mean(noise**2))


def test_points_at_one_place_are_no_error_and_make_it_surer() -> None:
    one = infer(np.zeros((1, 2)), np.array([1.0]), np.zeros((1, 2)))
    many = infer(np.zeros((9, 2)), np.full(9, 1.0), np.zeros((1, 2)))
    assert many.means == pytest.approx([1.0])
    assert many.deviations[0] < one.deviations[0]


@given(st.floats(-1, 1), st.floats(1e-3, 1.0))
def test_the_expected_improvement_is_that_of_drawn_values(mean: float, deviation: float) -> None:
    drawn = mean + deviation * np.random.default_rng(3).standard_normal(20_000)
    expected = Posterior(np.array([mean]), np.array([deviation])).expect_improvement(0.0)
    assert expected[0] == pytest.approx(np.maximum(0.0, -drawn).mean(), abs=0.03 * deviation)

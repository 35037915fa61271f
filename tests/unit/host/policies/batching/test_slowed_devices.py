"""What is believed of batches that nobody has seen, from those that were."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.policies.batching.slowed_devices import (
    ALIKE,
    APART,
    LEAST_ERROR,
    MOST_SEEN,
    SlowedDevice,
    SlowedDevices,
    fit_levels,
)
from tests.support.examples import examples

TABLE = 2.0 + 0.5 * np.arange(1, 201)
SURE = 1e-9


def seen(seconds: np.ndarray, *batches: int) -> dict[int, tuple[float, float]]:
    return {batch: (float(np.log(seconds[batch - 1] / TABLE[batch - 1])), SURE) for batch in batches}


@given(st.integers(1, 200), st.floats(-0.5, 3.0))
def test_one_batch_says_one_factor(batch: int, level: float) -> None:
    levels, errors = fit_levels(TABLE, {batch: (level, 0.1)})
    assert levels == pytest.approx(level)
    assert errors == pytest.approx(0.1)


@given(st.integers(2, 20), st.integers(80, 180), st.floats(0.5, 40), st.floats(1.0, 5.0))
@settings(max_examples=examples(100))
def test_an_offset_and_a_slope_are_found_from_two_batches(few: int, many: int, offset: float, slope: float) -> None:
    truth = TABLE * slope + offset
    points = seen(truth, many, few)
    levels, _ = fit_levels(TABLE, points)
    (level_many, _), (level_few, _) = points[many], points[few]
    if abs(level_few - level_many) > ALIKE * math.sqrt(2) * math.hypot(SURE, LEAST_ERROR):
        assert TABLE * np.exp(levels) == pytest.approx(truth, rel=0.03)
    else:  # for all that is known they are as slow as each other: one factor goes on beyond each
        assert levels[: few - 1] == pytest.approx(level_few)
        assert levels[many:] == pytest.approx(level_many)
        assert (TABLE * np.exp(levels))[few - 1 : many] == pytest.approx(truth[few - 1 : many], rel=0.03)


def test_a_batch_of_one_that_is_unharmed_is_no_reason_to_take_others_for_unharmed() -> None:
    truth = TABLE[0] + 4 * (TABLE - TABLE[0])
    levels, _ = fit_levels(TABLE, seen(truth, 40, 1))
    assert levels[0] == pytest.approx(0, abs=1e-6)
    assert levels[39] == pytest.approx(np.log(truth[39] / TABLE[39]))
    assert TABLE * np.exp(levels) == pytest.approx(truth, rel=0.05)


@given(
    st.dictionaries(
        st.integers(1, 200), st.tuples(st.floats(-0.3, 3), st.floats(0, 0.3)), min_size=1, max_size=MOST_SEEN
    )
)
@settings(max_examples=examples(200))
def test_seconds_never_fall_and_doubt_grows_away_from_what_was_seen(points: dict[int, tuple[float, float]]) -> None:
    levels, errors = fit_levels(TABLE, points)
    believed = TABLE * np.exp(levels)
    assert (np.diff(believed) >= -1e-9 * believed[1:]).all()
    assert np.isfinite(levels).all()
    assert (errors >= 0).all()
    last = list(points)[-1]
    heavier = [batch for batch in points if TABLE[batch - 1] > TABLE[last - 1] * np.exp(APART)]
    if not heavier:  # nothing but noise can lower it
        assert levels[last - 1] >= points[last][0] - 1e-9


def test_of_batches_that_are_near_each_other_the_last_one_counts() -> None:
    levels, _ = fit_levels(TABLE, {100: (1.0, SURE), 99: (0.0, SURE)})
    assert levels == pytest.approx(0.0)


def test_only_the_last_batches_are_remembered_and_waits_grow() -> None:
    known = SlowedDevice()
    for batch in range(1, 8):
        known.see(batch, 0.1 * batch, 0.01)
    known.see(4, 0.5, 0.01)
    assert list(known.seen) == [5, 6, 7, 4]
    assert known.slowed(0.55) == [6, 7]
    known.put_off(100)
    first = known.due - 100
    known.put_off(200)
    assert known.due - 200 > 2 * first


def test_a_checkpoint_keeps_what_is_known_of_the_first_array() -> None:
    known = SlowedDevices((1, 2))
    known.known[0, 1] = SlowedDevice({3: (0.5, 0.1), 9: (0.7, 0.2)}, 40, 32, 5)
    again = SlowedDevices((1, 2))
    again.load(json.loads(json.dumps(known.dump())))
    assert again.known == known.known
    again.forget(np.array([[False, True]]))
    assert not again.known

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.stannis.stannis_arrays import DrawnArray, DrawnClass, draw_array, measured_seconds
from csd_lab.bench.stannis.stannis_ranges import MOST_RECORDS, RANGES, SHAPES


@st.composite
def small_arrays(draw: st.DrawFn) -> DrawnArray:
    classes = []
    for _ in range(draw(st.integers(1, 3))):
        jumps = draw(st.lists(st.integers(0, 3), min_size=6, max_size=6))
        seconds = draw(st.integers(1, 5)) + np.cumsum(np.array(jumps, np.float64))
        classes.append(DrawnClass("offset", draw(st.integers(1, 2)), seconds, draw(st.integers(1, 6))))
    return DrawnArray(tuple(classes), draw(st.sampled_from([0.0, 0.5, 7.0])))


@settings(max_examples=40)
@given(small_arrays(), st.integers(0, 40), st.sampled_from([0, 1]))
def test_the_best_is_that_of_all_batches_of_all_devices(array: DrawnArray, room: int, least: int) -> None:
    devices = [one for one in array.classes for _ in range(one.devices)]
    most = len(devices) + room
    if len(devices) > 4:
        return
    best = 0.0
    for batches in itertools.product(*(range(least, one.limit + 1) for one in devices)):
        if 0 < sum(batches) <= most:
            longest = max(one.step_seconds[batch - 1] for one, batch in zip(devices, batches, strict=True) if batch)
            best = max(best, sum(batches) / (float(longest) + array.exchange_seconds))
    assert array.best_rate(most, least) == pytest.approx(best)


def test_every_shape_is_drawn_and_no_curve_ever_falls() -> None:
    arrays = [draw_array(generator) for generator in np.random.default_rng(5).spawn(40)]
    assert {one.shape for array in arrays for one in array.classes} == set(SHAPES)
    for array in arrays:
        assert array.exchange_seconds >= 0
        for one in array.classes:
            assert one.step_seconds.shape == (MOST_RECORDS,)
            assert np.all(np.diff(one.step_seconds) >= 0)
            assert 1 <= one.limit <= MOST_RECORDS


def test_classes_of_an_array_do_not_differ_in_speed_alone() -> None:
    """Where they did, the ratio of two curves would be the same at all batches."""
    arrays = [draw_array(generator) for generator in np.random.default_rng(6).spawn(20)]
    ratios = [array.classes[0].step_seconds[:64] / array.classes[1].step_seconds[:64] for array in arrays]
    assert all(ratio.max() / ratio.min() > 1.05 for ratio in ratios)


def test_a_saturated_step_gives_every_device_its_rate_whatever_its_memory() -> None:
    """The first has 95 % of its rate at 19 records, which take 20 s; the second at one, and computes 40 meanwhile."""
    batches = np.arange(1, MOST_RECORDS + 1)
    slow, fast = DrawnClass("offset", 2, batches + 1.0, 4), DrawnClass("offset", 1, batches / 2.0, 1)
    assert DrawnArray((slow, fast), 3.0).saturated_records() == 2 * 19 + 40


def test_batches_that_do_not_fit_are_refused() -> None:
    array = DrawnArray((DrawnClass("offset", 2, np.arange(1.0, 9.0), 4),), 1.0)
    assert array.rate([4]) == 8 / 5
    for batch in (0, 5):
        with pytest.raises(ValueError, match="not between 1 and"):
            array.rate([batch])


def test_a_calibration_without_noise_hits_the_batches_that_it_measured() -> None:
    seconds = draw_array(np.random.default_rng(7)).classes[0].step_seconds

    class Silent:
        def normal(self, mean: float, deviation: float, size: int) -> object:
            return np.zeros(size)

    found = measured_seconds(seconds, Silent())  # type: ignore[arg-type]
    measured = np.array(RANGES.table_batches) - 1
    assert found[measured] == pytest.approx(seconds[measured])
    assert np.all(np.diff(found) >= 0)

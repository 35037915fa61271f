import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.profiles.calibration.table_fit import TREND_POINTS, Point, has_kernels, predict, trend

SECONDS = st.floats(1e-6, 1e3)
BATCH = st.integers(1, 4096)


@st.composite
def points(draw: st.DrawFn, monotone: bool = False) -> list[Point]:
    batches = sorted(draw(st.sets(BATCH, min_size=2, max_size=8)))
    values = draw(st.lists(SECONDS, min_size=len(batches), max_size=len(batches)))
    return list(zip(batches, sorted(values) if monotone else values, strict=True))


@given(points=points())
def test_a_measured_batch_has_its_measured_value(points: list[Point]) -> None:
    assert [predict(points, batch) for batch, _ in points] == [value for _, value in points]


@given(points=points(monotone=True), one=st.integers(1, 10_000), other=st.integers(1, 10_000))
def test_what_grows_in_the_table_grows_everywhere(points: list[Point], one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert predict(points, low) <= predict(points, high) * (1 + 1e-9)


@given(
    fixed=st.floats(0, 10),
    slope=st.floats(1e-6, 10),
    batches=st.sets(BATCH, min_size=2, max_size=8),
    asked=st.integers(1, 10_000),
)
def test_a_line_is_recovered_at_any_batch(fixed: float, slope: float, batches: set[int], asked: int) -> None:
    points = [(batch, fixed + slope * batch) for batch in sorted(batches)]
    assert trend(points) == pytest.approx((fixed, slope), rel=1e-4, abs=1e-6)
    assert predict(points, asked) == pytest.approx(fixed + slope * asked, rel=1e-6)


@given(points=points(), asked=st.integers(1, 10_000))
def test_no_step_takes_negative_time(points: list[Point], asked: int) -> None:
    assert predict(points, asked) >= 0
    assert min(trend(points)) >= 0


@given(points=points(), asked=st.integers(1, 10_000), factor=st.floats(1e-3, 1e3))
def test_the_unit_of_the_seconds_does_not_matter(points: list[Point], asked: int, factor: float) -> None:
    scaled = [(batch, value * factor) for batch, value in points]
    assert predict(scaled, asked) == pytest.approx(predict(points, asked) * factor, rel=1e-6)


@given(points=points(), asked=st.integers(1, 10_000))
def test_between_two_batches_the_value_lies_between_theirs(points: list[Point], asked: int) -> None:
    for (low, before), (high, after) in itertools.pairwise(points):
        if low <= asked <= high:
            assert min(before, after) * (1 - 1e-9) <= predict(points, asked) <= max(before, after) * (1 + 1e-9)


def test_a_phase_that_costs_nothing_costs_nothing_anywhere() -> None:
    points = [(1, 0.0), (2, 0.0), (4, 0.0)]
    assert [predict(points, batch) for batch in (1, 3, 100)] == [0.0, 0.0, 0.0]


def kernels(batch: int) -> float:
    """A model with 1x1 filters on one thread: a jump at batch 2, another slope from 16 on."""
    return 0.25 if batch == 1 else 0.2 + 0.1 * batch if batch < 16 else 0.2 + 0.15 * batch


@pytest.mark.parametrize("batches", [(2, 4, 8, 16, 32), (1, 2, 4, 16), (1, 4, 8, 24), (3, 5, 16, 20, 64)])
def test_each_range_of_kernels_keeps_its_own_line(batches: tuple[int, ...]) -> None:
    points = [(batch, kernels(batch)) for batch in batches]
    for asked in (2, 3, 9, 15, 16, 17, 40, 500):
        assert predict(points, asked) == pytest.approx(kernels(asked)), asked


def test_kernels_that_were_not_measured_are_taken_for_those_below() -> None:
    points = [(1, 0.9), (2, 0.4), (4, 0.6)]
    assert predict(points, 32) == pytest.approx(0.2 + 0.1 * 32)
    assert [has_kernels([1, 2, 4], batch) for batch in (1, 3, 15, 16, 100)] == [True, True, True, False, False]
    assert not has_kernels([2, 4], 1)


def test_the_trend_does_not_look_at_small_batches() -> None:
    line = [(16 * 2**n, 5.0 + 2 * 2**n) for n in range(TREND_POINTS)]
    assert trend([(3, 100.0), *line]) == trend(line)


def test_below_the_smallest_batch_time_does_not_end_before_the_batch_does() -> None:
    convex = [(4, 1.0), (8, 10.0)]  # the line through them is below zero at batch 1
    assert predict(convex, 1) == 0.25

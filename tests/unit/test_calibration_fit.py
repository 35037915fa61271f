import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.calibration.fit import TREND_POINTS, Point, predict, trend

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
    assert trend(points) == pytest.approx(slope, rel=1e-6)
    assert predict(points, asked) == pytest.approx(fixed + slope * asked, rel=1e-6)


@given(points=points(), asked=st.integers(1, 10_000))
def test_no_step_takes_negative_time(points: list[Point], asked: int) -> None:
    assert predict(points, asked) >= 0
    assert trend(points) >= 0


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


def test_the_trend_does_not_look_at_small_batches() -> None:
    """At batch 1 other kernels run; what they cost says nothing of batch 512."""
    line = [(2 * 2**n, 5.0 + 2 * 2**n) for n in range(TREND_POINTS)]
    assert trend([(1, 100.0), *line]) == trend(line)


def test_below_the_smallest_batch_time_does_not_end_before_the_batch_does() -> None:
    convex = [(4, 1.0), (8, 10.0)]  # the line through them is below zero at batch 1
    assert predict(convex, 1) == 0.25

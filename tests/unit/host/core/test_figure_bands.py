"""Arithmetic of bands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.core.figure_bands import (
    Band,
    add_bands,
    cancelled_share,
    describe_ends,
    format_band,
    format_ratio,
    rate_band,
    ratio_band,
    scale_band,
    span_of,
    stack_band,
    watts_band,
)

# Without width, or wider than what rounding does to it.
widths = st.just(1.0) | st.floats(1.00001, 10.0)
ends = st.tuples(st.floats(0.01, 1e3), widths).map(lambda two: Band(two[0], two[0] * two[1]))


@given(one=ends, factor=st.floats(0.1, 10))
def test_a_band_cancels_wholly_in_a_ratio_of_what_it_scales_alike(one: Band, factor: float) -> None:
    ratio = ratio_band(one, Band(one.low * factor, one.high * factor))
    assert (ratio.low, ratio.high) == pytest.approx((1 / factor, 1 / factor))
    assert cancelled_share(one, Band(one.low * factor, one.high * factor)) == pytest.approx(1.0)


@given(one=ends, value=st.floats(0.01, 1e3))
def test_nothing_cancels_against_an_exact_figure(one: Band, value: float) -> None:
    assert cancelled_share(one, Band(value, value)) == pytest.approx(0.0 if one.high > one.low else 1.0, abs=1e-9)


@given(one=ends, other=ends)
def test_a_ratio_lies_within_that_of_unrelated_figures(one: Band, other: Band) -> None:
    ratio = ratio_band(one, other)
    assert one.low / other.high <= ratio.low * (1 + 1e-12) <= ratio.high * (1 + 1e-11)
    assert ratio.high <= one.high / other.low * (1 + 1e-12)
    assert -1e-9 <= cancelled_share(one, other) <= 1.0


def test_sums_take_what_one_part_lacks_as_0_and_rates_turn_round() -> None:
    part = {"array_seconds": Band(1.0, 2.0)}
    assert add_bands(part, {"array_seconds": Band(0.5, 3.0)}) == {"array_seconds": Band(1.5, 5.0)}
    assert add_bands(part, {"other": Band(0.5, 3.0)}) == part | {"other": Band(0.5, 3.0)}
    assert add_bands(part, {}) == add_bands({}, part) == part
    assert rate_band(8, Band(2.0, 4.0)) == Band(2.0, 4.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_a_span_holds_all_of_its_values_and_no_more(values: list[float]) -> None:
    band = span_of(values)
    assert all(band.low <= value <= band.high for value in values)
    assert {band.low, band.high} <= set(values)


@given(joules=ends, seconds=ends, watts=st.floats(0.01, 1e3))
def test_a_band_of_watts_holds_them_and_what_they_are_at_both_ends(joules: Band, seconds: Band, watts: float) -> None:
    band = watts_band(watts, joules, seconds)
    assert band is not None
    for value in (watts, joules.low / seconds.low, joules.high / seconds.high):
        assert band.low <= value <= band.high


@given(one=ends, factor=st.floats(0.1, 10))
def test_watts_of_joules_that_grow_as_seconds_do_have_none(one: Band, factor: float) -> None:
    band = watts_band(factor, Band(one.low * factor, one.high * factor), one)
    assert band is not None
    assert (band.low, band.high) == pytest.approx((factor, factor))


def test_watts_have_no_band_where_seconds_or_joules_have_none() -> None:
    known = Band(1.0, 2.0)
    assert watts_band(1.0, None, known) is watts_band(1.0, known, None) is watts_band(1.0, known, Band(0, 0)) is None


@given(one=ends, factor=st.floats(0.1, 10), value=st.floats(0.1, 10))
def test_a_ratio_of_what_the_same_figures_scale_has_no_band_and_says_that_theirs_cancel(
    one: Band, factor: float, value: float
) -> None:
    other = scale_band(one, factor)
    assert format_ratio(f"{value:.3g}", one, other) == f"{value:.3g} (100% of their bands cancels)"


def test_a_ratio_has_the_band_that_does_not_cancel_and_none_where_one_is_not_known() -> None:
    one, other = Band(2.0, 8.0), Band(1.0, 2.0)
    assert (
        format_ratio("3.0 times as fast", one, other) == "3.0 times as fast (2 to 4 times; 71% of their bands cancels)"
    )
    for unknown in (None, Band(0.0, 1.0)):
        assert format_ratio("3.0", unknown, other) == format_ratio("3.0", other, unknown) == "3.0"


def test_a_stacked_band_has_two_lines_of_its_own() -> None:
    assert stack_band("0.40 (0.31 to 0.52)") == "0.40\n(0.31\nto 0.52)"
    assert stack_band("0.40") == "0.40"


names = st.sampled_from(["one", "two", "three"])


@given(chosen=names, low=names, high=names)
def test_what_is_said_of_a_choice_names_each_end_that_differs_and_no_other(chosen: str, low: str, high: str) -> None:
    said = describe_ends(chosen, {"low": low, "high": high})
    assert (f"at the fast end of the bands: {low}" in said) == (low != chosen)
    assert (f"at the slow end of the bands: {high}" in said) == (high != chosen)
    assert (said == "the same at both ends of the bands") == (low == high == chosen)


def test_a_band_stands_behind_its_figure_unless_it_is_one_point() -> None:
    assert format_band("0.40", Band(0.314, 0.5249)) == "0.40 (0.314 to 0.525)"
    assert format_band("1822.4", Band(773.4, 31184.2)) == "1822.4 (773 to 31184)"
    assert format_band("2.0001", Band(2.0, 2.0002)) == "2.0001"
    assert format_band("2.0", Band(2.0, 2.0)) == format_band("2.0", None) == "2.0"

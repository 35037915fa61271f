"""Laws of the gate: inside the band never fails, outside always does, on both sides."""

import logging
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from csd_emu.util.renamed import OLD_FIGURES
from firmware_agent.common.errors import ConfigurationError
from host.app.gate.gate_checks import (
    DEFAULT_BAND,
    KINDS,
    NO_CLOCK,
    ExpectedFigure,
    Verdict,
    describe_cancelled,
    describe_sampling,
    expect,
    format_tolerance,
    judge,
    parse_bands,
)
from host.core.figure_bands import Band
from host.core.sampling.sampling_record import SamplingRecord

NAMES = st.sampled_from(sorted(KINDS))
VALUES = st.floats(1e-6, 1e9)
BANDS = st.floats(0, 0.9)
MEASURED = {"accuracy": 0.95, "records_per_device_second": 3000.0, "joules_per_record": 0.02}


def expected(value: float, band: float) -> ExpectedFigure:
    return ExpectedFigure(value, "1/s", "counted", band)


@given(NAMES, VALUES, BANDS, st.floats(-0.999, 0.999))
def test_inside_its_band_a_figure_never_fails(name: str, value: float, band: float, place: float) -> None:
    assert judge(name, expected(value, band), value * (1 + band * place)).verdict is Verdict.WITHIN


@given(NAMES, VALUES, BANDS, st.floats(1e-6, 5), st.booleans())
def test_outside_it_always_does_and_says_on_which_side(
    name: str, value: float, band: float, beyond: float, up: bool
) -> None:
    share = band + beyond if up else -band - beyond
    assume(share > -0.999)
    compared = judge(name, expected(value, band), value * (1 + share))
    assert compared.verdict is (Verdict.BETTER if up == KINDS[name].more_is_better else Verdict.WORSE)
    assert compared.change == pytest.approx(share, rel=1e-6, abs=1e-9)


@given(NAMES, VALUES)
def test_a_figure_that_is_as_expected_passes_with_no_band_at_all(name: str, value: float) -> None:
    assert judge(name, expected(value, 0.0), value).verdict is Verdict.WITHIN


@given(NAMES, VALUES, st.floats(0, 10), st.sampled_from([math.nan, math.inf, -math.inf, -1.0, -1e-9]))
def test_what_is_no_measurement_fails_whatever_the_band(name: str, value: float, band: float, wrong: float) -> None:
    compared = judge(name, expected(value, band), wrong)
    assert compared.verdict is Verdict.UNUSABLE
    assert compared.change is None
    assert compared.measured is None or math.isfinite(compared.measured)


@given(NAMES, VALUES, st.floats(0, 10))
def test_nothing_where_something_was_expected_fails_whatever_the_band(name: str, value: float, band: float) -> None:
    assert judge(name, expected(value, band), 0.0).verdict is Verdict.UNUSABLE


def test_a_slowdown_of_two_percent_leaves_the_default_band_and_noise_does_not() -> None:
    figure = expected(3166.40, DEFAULT_BAND)
    assert judge("records_per_device_second", figure, 3166.40 / 1.02).verdict is Verdict.WORSE
    assert judge("records_per_device_second", figure, 3165.85).verdict is Verdict.WITHIN


@pytest.mark.parametrize("clock", ["counted", "modelled"])
def test_device_time_has_the_default_band_and_accuracy_no_clock(clock: str) -> None:
    figures = expect(MEASURED, clock, {})
    assert {name: (figure.value, figure.band) for name, figure in figures.items()} == {
        name: (value, DEFAULT_BAND) for name, value in MEASURED.items()
    }
    assert figures["accuracy"].clock == NO_CLOCK
    assert figures["joules_per_record"].clock == clock


@pytest.mark.parametrize("clock", ["wall", "counted+wall"])
def test_wall_time_needs_a_band_of_its_own_for_every_figure_of_seconds(clock: str) -> None:
    for bands in ({}, {"records_per_device_second": 0.3}, {"joules_per_record": 0.3}):
        with pytest.raises(ConfigurationError, match="would be measured in wall time"):
            expect(MEASURED, clock, bands)
    figures = expect(MEASURED, clock, {"records_per_device_second": 0.3, "joules_per_record": None})
    assert set(figures) == {"accuracy", "records_per_device_second"}


def test_a_baseline_of_nothing_is_refused(subtests: pytest.Subtests) -> None:
    for name in KINDS:
        for wrong in [0.0, -1.0, math.nan, math.inf]:
            with subtests.test(wrong=wrong, name=name):
                with pytest.raises(ConfigurationError, match=f"--band {name}=none"):
                    expect(MEASURED | {name: wrong}, "counted", {})
                assert name not in expect(MEASURED | {name: wrong}, "counted", {name: None})


def test_a_baseline_without_figures_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing to compare"):
        expect(MEASURED, "counted", dict.fromkeys(KINDS))


@given(st.floats(0, 10), st.booleans())
def test_a_band_is_read_as_a_share_or_in_percent(share: float, percent: bool) -> None:
    text = f"{100 * share!r}%" if percent else repr(share)
    assume(100 * share <= 1000 if percent else share <= 1)
    assert parse_bands([f"accuracy={text}"])["accuracy"] == pytest.approx(share)


def test_none_leaves_a_figure_out() -> None:
    assert parse_bands([" accuracy = none ", "joules_per_record=0"]) == {
        "accuracy": None,
        "joules_per_record": 0.0,
    }


def test_a_band_that_cannot_be_meant_is_named(subtests: pytest.Subtests) -> None:
    for text in [
        "",
        "accuracy",
        "accuracy=",
        "=1%",
        "speed=1%",
        "accuracy=-1%",
        "accuracy=nan",
        "accuracy=x",
        "accuracy=2",
        "accuracy=1.5",
    ]:
        with subtests.test(text=text), pytest.raises(ConfigurationError, match="--band"):
            parse_bands([text])


@pytest.mark.parametrize(("old", "new"), OLD_FIGURES.items())
def test_a_band_of_an_old_name_is_that_of_the_new_one(old: str, new: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_bands([f"{old}=3%"]) == {new: pytest.approx(0.03)}
    assert f"--band {old}=3%: the figure {old} is called {new} now" in caplog.text
    with pytest.raises(ConfigurationError, match=f"{new} has a band already"):
        parse_bands([f"{new}=1%", f"{old}=1%"])


def test_a_figure_with_two_bands_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="accuracy has a band already"):
        parse_bands(["accuracy=1%", "accuracy=none"])


def test_a_band_is_shown_in_percent() -> None:
    assert [format_tolerance(band) for band in (0.01, 0.005, 0.3, 0.0)] == ["±1 %", "±0.5 %", "±30 %", "±0 %"]


def test_bands_of_the_profiles_cancel_in_the_change_as_far_as_both_runs_have_them() -> None:
    bands = {"records_per_device_second": Band(50.0, 200.0), "joules_per_record": Band(1.0, 4.0)}
    expected = expect(MEASURED, "counted", {}, bands)
    assert expected["accuracy"].profiles_band is None
    told = describe_cancelled(expected, bands | {"records_per_device_second": Band(55.0, 220.0)})
    assert [line.split(":")[0] for line in told] == ["records_per_device_second", "joules_per_record"]
    assert "100.0%" in told[0]
    assert "+10.00% to +10.00%" in told[0]
    assert describe_cancelled(expected, {}) == describe_cancelled(expect(MEASURED, "counted", {}), bands) == []


@given(BANDS, BANDS)
def test_a_band_no_wider_than_what_sampling_leaves_open_is_told_of(band: float, error: float) -> None:
    figures = {name: ExpectedFigure(1.0, kind.unit, "sampled", band) for name, kind in KINDS.items()}
    sampling = SamplingRecord(counted_steps=1, steps=9, error=error, start_share=0.0)
    told = describe_sampling(figures, sampling)
    timed = {name for name, kind in KINDS.items() if kind.timed}
    assert {each.partition(":")[0] for each in told} == (timed if band <= error else set())
    assert not describe_sampling(figures, None)

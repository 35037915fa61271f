"""Comparison of runs: verdicts, and what differs."""

import math
import statistics
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from firmware_agent.common.errors import ConfigurationError
from host.core.summary import decode_summary
from host.monitoring.report.load_run import RunData, load_run
from host.monitoring.runs.comparison_page import curve_charts, write_comparison
from host.monitoring.runs.run_comparison import (
    HIGHER,
    LOWER,
    NO_DIFFERENCE,
    OTHER_CLOCK,
    SPREAD_UNKNOWN,
    compare_runs,
    judge,
)
from tests import ROOT

RUN = ROOT / "tests" / "data" / "run-0.1.0" / "federated"
VALUES = st.lists(st.floats(-100, 100).map(lambda value: round(value, 3)), min_size=2, max_size=6)


def run_of(accuracy: float | None = None, clock: str | None = None, **job: Any) -> RunData:
    """The run of 0.1.0 with changes."""
    run = load_run(RUN, trusted=True)
    changed = {name: value for name, value in (("accuracy", accuracy), ("clock", clock)) if value is not None}
    assert run.summary is not None
    values = {each: getattr(run, each) for each in ("path", "rounds", "events", "array", "versions")}
    return RunData(**values, summary=msgspec.structs.replace(run.summary, **changed), job={**run.job, **job})


@given(VALUES, VALUES)
def test_a_verdict_is_welchs(first: list[float], second: list[float]) -> None:
    assume(min(statistics.variance(first), statistics.variance(second)) > 1e-6)
    expected = stats.ttest_ind(second, first, equal_var=False)
    assume(abs(expected.pvalue - 0.05) > 1e-6)
    kind = NO_DIFFERENCE if expected.pvalue > 0.05 else HIGHER if expected.statistic > 0 else LOWER
    assert judge(first, second) == kind


@given(VALUES, VALUES)
def test_the_other_way_round_it_is_the_opposite(first: list[float], second: list[float]) -> None:
    opposite = {HIGHER: LOWER, LOWER: HIGHER}
    there = judge(first, second)
    assert judge(second, first) == opposite.get(there, there)


@given(st.floats(-100, 100), st.floats(-100, 100))
def test_of_one_run_each_nothing_is_known_but_that_they_are_equal(one: float, other: float) -> None:
    assert judge([one], [other]) == (NO_DIFFERENCE if one == other else SPREAD_UNKNOWN)


@given(VALUES, st.floats(-1000, 1000))
def test_a_single_run_varies_as_the_others_do(values: list[float], single: float) -> None:
    assume(statistics.variance(values) > 1e-6)
    difference = single - statistics.fmean(values)
    error = math.sqrt(statistics.variance(values) * (1 + 1 / len(values)))
    reach = error * stats.t.ppf(0.975, len(values) - 1)
    assume(abs(abs(difference) - reach) > 1e-6)
    kind = NO_DIFFERENCE if abs(difference) < reach else HIGHER if difference > 0 else LOWER
    assert judge(values, [single]) == kind


def test_figures_stand_beside_each_other_with_what_differs(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    narrow = [run_of(0.5 + float(rng.normal(0, 0.01)), batch_size=16, seed=seed) for seed in range(4)]
    wide = [run_of(0.8 + float(rng.normal(0, 0.01)), batch_size=64, seed=seed, name="wide") for seed in range(4)]
    comparison = compare_runs({"narrow": narrow, "wide": wide})
    figures = {row.figure: row for row in comparison.figures}
    first, second = figures["accuracy"].columns
    assert (first.runs, first.verdict, second.verdict, figures["accuracy"].clock) == (4, "", HIGHER, "")
    assert second.difference == pytest.approx((second.mean or 0) - (first.mean or 0))
    assert figures["array_seconds"].clock
    assert figures["array_seconds"].columns[1].verdict == NO_DIFFERENCE
    assert comparison.configuration == {"batch_size": [16, 64]}
    page = tmp_path / "compared.html"
    write_comparison(comparison, {"narrow": narrow, "wide": wide}, page)
    text = page.read_text(encoding="utf-8")
    assert "batch_size" in text
    assert "<svg" in text
    assert HIGHER in text


def test_runs_without_classes_are_drawn_by_their_loss() -> None:
    run = run_of()
    rounds = [msgspec.structs.replace(each, accuracy=math.nan, test_loss=2.0 / each.round) for each in run.rounds]
    regression = RunData(**{each: getattr(run, each) for each in RunData.__dataclass_fields__} | {"rounds": rounds})
    for chart in curve_charts({"one": [regression], "other": [regression]}):
        assert (chart.title.split()[0], chart.panes[0].unit) == ("Loss", "loss")
        assert chart.panes[0].curves[0].y == [each.test_loss for each in rounds]


def test_seconds_of_different_clocks_are_not_compared() -> None:
    comparison = compare_runs({"a": [run_of(clock="modelled")], "b": [run_of(clock="wall")]})
    verdicts = {row.figure: row.columns[1].verdict for row in comparison.figures}
    assert verdicts["array_seconds"] == verdicts["joules_per_record"] == OTHER_CLOCK
    assert verdicts["host_link_bytes_per_record"] == NO_DIFFERENCE


@pytest.mark.parametrize("groups", [{}, {"a": [1]}, {"a": [1], "b": []}])
def test_less_than_two_groups_are_no_comparison(groups: dict[str, list[int]]) -> None:
    with pytest.raises(ConfigurationError, match="a comparison needs two runs"):
        compare_runs({name: [run_of() for _ in runs] for name, runs in groups.items()})


def test_runs_of_one_group_differ_in_their_seeds_alone() -> None:
    mixed = [run_of(batch_size=16), run_of(batch_size=32)]
    with pytest.raises(ConfigurationError, match="a: its runs differ in batch_size, not in their seeds alone"):
        compare_runs({"a": mixed, "b": [run_of()]})


def test_a_run_that_has_not_ended_has_no_figures() -> None:
    run = run_of()
    unfinished = RunData(path=run.path, rounds=run.rounds, array=run.array, job=run.job)
    comparison = compare_runs({"a": [run], "b": [unfinished]})
    assert {row.columns[1].verdict for row in comparison.figures} == {"no figure"}

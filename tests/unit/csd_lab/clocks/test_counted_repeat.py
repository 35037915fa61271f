"""Two counted runs of a job, beside the sampled one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from csd_lab.clocks.clock_comparison import ARRAY
from csd_lab.clocks.clock_runs import ClockRun
from csd_lab.clocks.counted_repeat import CountedRepeat, RepeatedSeconds, compare_repeat, decision_figures
from firmware_agent.common.errors import EnvironmentUnfit
from tests.support.clock_comparisons import compared, comparison, run_of


def repeat(equal: int, every: int, sampled: int) -> CountedRepeat:
    seconds = [RepeatedSeconds(of=ARRAY, first_seconds=1.0, second_seconds=1.0)]
    return CountedRepeat(
        seconds=seconds,
        second_decisions=[],
        equal_decisions=equal,
        decisions=every,
        sampled_equal_decisions=sampled,
    )


def repeated(folder: Path, first: ClockRun, second: ClockRun, batch: int) -> CountedRepeat:
    told = compared(first, run_of(folder / "sampled", "sampled", [1.0, 2.0], batch=batch))
    return compare_repeat(told, first, second)


def test_seconds_of_two_counted_runs_are_held_against_each_other(tmp_path: Path) -> None:
    first, second = (run_of(tmp_path / str(seconds), "counted", [1.0, seconds]) for seconds in (2.0, 2.2))
    told = repeated(tmp_path, first, second, 32)
    assert [each.of for each in told.seconds] == ["csd-00", ARRAY]
    assert told.seconds[0].error == pytest.approx(3.0 / 3.2 - 1)
    assert told.seconds_worst == pytest.approx(1 - 3.0 / 3.2)
    assert told.repeats


def test_what_two_counted_runs_decide_otherwise_is_not_asked_of_the_sampled_one(tmp_path: Path) -> None:
    first = run_of(tmp_path / "first", "counted", [1.0, 2.0], batch=10)
    second = run_of(tmp_path / "second", "counted", [1.0, 2.0], batch=20)
    told = repeated(tmp_path, first, second, 10)
    assert not told.repeats
    assert (told.equal_decisions, told.decisions, told.sampled_equal_decisions) == (1, 3, 1)  # the beginning
    assert [each.batches for each in told.second_decisions if each.what == "retune"] == [{"csd-00": 20}]


def test_what_two_counted_runs_decide_alike_is_asked_of_the_sampled_one(tmp_path: Path) -> None:
    first, second = (run_of(tmp_path / name, "counted", [1.0, 2.0], batch=10) for name in ("first", "second"))
    told = repeated(tmp_path, first, second, 40)
    assert told.repeats
    assert (told.equal_decisions, told.sampled_equal_decisions) == (2, 1)


def test_rounds_that_the_sampled_run_lacks_are_left_out(tmp_path: Path) -> None:
    first, second = (run_of(tmp_path / str(last), "counted", [1.0, 2.0, last]) for last in (5.0, 9.0))
    assert repeated(tmp_path, first, second, 32).seconds_worst == 0.0


def test_a_second_run_with_fewer_rounds_is_refused(tmp_path: Path) -> None:
    first, second = run_of(tmp_path / "1", "counted", [1.0, 2.0]), run_of(tmp_path / "2", "counted", [1.0])
    with pytest.raises(EnvironmentUnfit, match="has 1 rounds, 2 are compared"):
        repeated(tmp_path, first, second, 32)


def test_a_drive_that_trains_in_one_run_alone_does_not_repeat() -> None:
    assert RepeatedSeconds(of="csd-00", first_seconds=1.0, second_seconds=0.0).error == math.inf


def test_of_a_job_that_repeats_all_decisions_count() -> None:
    job = comparison("a", 0.0, 0.0, decisions=6, equal_decisions=4)
    figures = decision_figures([job], {"a": repeat(5, 5, 5)})
    assert figures == {"decisions_equal": 4 / 6, "decisions_equal_all": 4 / 6, "decisions_repeat": 1.0}


def test_of_a_job_that_does_not_those_of_both_counted_runs_count() -> None:
    jobs = [
        comparison("a", 0.0, 0.0, decisions=16, equal_decisions=2),
        comparison("b", 0.0, 0.0, decisions=5, equal_decisions=5),
        comparison("once", 0.0, 0.0, decisions=1, equal_decisions=1),
    ]
    figures = decision_figures(jobs, {"a": repeat(3, 14, 2), "b": repeat(5, 5, 5)})
    assert figures["decisions_equal"] == pytest.approx((2 + 5 + 1) / (3 + 5 + 1))
    assert figures["decisions_equal_all"] == pytest.approx((2 + 5 + 1) / (16 + 5 + 1))
    assert figures["decisions_repeat"] == pytest.approx((3 + 5) / (14 + 5))


def test_without_decisions_there_are_no_figures_of_them() -> None:
    assert decision_figures([comparison("a", 0.0, 0.0)], {}) == {}

"""The figures of `bench sampled`, from comparisons and replays that are made up."""

from __future__ import annotations

import pytest
from msgspec import structs

from csd_emu.config.array_file import ArrayConfig
from csd_lab.bench.sampling.bench_sampled import resample, sampled_figures, sampled_job
from csd_lab.bench.sampling.sampled_jobs import JOBS
from csd_lab.bench.sampling.unseen_disturbance import MOST_STEPS, Notice
from csd_lab.clocks.clock_comparison import ARRAY
from csd_lab.clocks.clock_runs import array_on_clock
from csd_lab.clocks.counted_repeat import CountedRepeat, RepeatedSeconds
from csd_lab.clocks.resampling import Held
from csd_lab.clocks.step_series import DevicePass, SeriesStep, StepSeries
from host.config.job_file import JobConfig, check_mode
from tests.support.clock_comparisons import comparison


def notice(steps: int | None) -> Notice:
    return Notice(weight=100, before=0, step=20, steps=steps, false=0)


REPEAT = CountedRepeat(
    seconds=[
        RepeatedSeconds(of="csd-00", first_seconds=3.0, second_seconds=4.0),
        RepeatedSeconds(of=ARRAY, first_seconds=5.0, second_seconds=4.5),
    ],
    second_decisions=[],
    equal_decisions=3,
    decisions=14,
    sampled_equal_decisions=2,
)
HELD = {"a": [Held(device="csd-00", error=0.001, half_width=0.002), Held(device="csd-00", error=0.1, half_width=0.002)]}


def test_the_worse_of_drives_and_arrays_counts() -> None:
    compared = [comparison("a", 0.001, -0.02), comparison("b", -0.003, 0.002), comparison("c", 0.002, 0.001)]
    figures = sampled_figures(compared, {}, HELD, [notice(2), notice(5)])
    assert figures["error_worst"] == pytest.approx(0.02)
    assert figures["error_median"] == pytest.approx(0.002)
    assert figures["coverage"] == 0.5
    assert figures["noticed"] == 5


def test_wall_seconds_are_summed_before_they_are_divided() -> None:
    slow = comparison("a", 0.0, 0.0, counted_wall_seconds=300.0, sampled_wall_seconds=30.0)
    figures = sampled_figures([slow, comparison("b", 0.0, 0.0)], {}, HELD, [notice(1)])
    assert figures["wall_over_counted"] == pytest.approx(60 / 400)


def test_what_was_not_compared_is_no_figure() -> None:
    figures = sampled_figures([comparison("a", 0.0, 0.0)], {}, HELD, [notice(1)])
    assert figures["weights_compared"] == 0
    assert not {"weights_difference", "decisions_equal"} & set(figures)
    compared = [comparison("a", 0.0, 0.0, weights_difference=0.0, decisions=4, equal_decisions=3)]
    figures = sampled_figures(compared, {}, HELD, [notice(1)])
    assert (figures["weights_difference"], figures["weights_compared"], figures["decisions_equal"]) == (0.0, 1, 0.75)


def test_a_disturbance_that_was_never_seen_is_no_good_figure() -> None:
    assert sampled_figures([comparison("a", 0.0, 0.0)], {}, HELD, [notice(1), notice(None)])["noticed"] == MOST_STEPS


def test_samples_have_what_a_figure_was_made_of() -> None:
    sample = sampled_job(comparison("a", 0.01, 0.0), REPEAT, HELD["a"])
    assert sample["seconds"][0]["error"] == pytest.approx(0.01)
    assert sample["wall_over_counted"] == pytest.approx(0.3)
    assert sample["resampled"]["coverage"] == 0.5
    assert sample["counted_again"]["seconds_worst"] == pytest.approx(0.25)
    assert "counted_again" not in sampled_job(comparison("a", 0.01, 0.0), None, HELD["a"])


def test_jobs_whose_counted_runs_decide_otherwise_are_left_out_of_one_figure_alone() -> None:
    compared = [comparison("a", 0.05, 0.0), comparison("b", 0.002, -0.003), comparison("once", 0.001, 0.0)]
    repeats = {"a": REPEAT, "b": structs.replace(REPEAT, equal_decisions=14, seconds=REPEAT.seconds[1:])}
    figures = sampled_figures(compared, repeats, HELD, [notice(1)])
    assert figures["error_worst"] == pytest.approx(0.05)
    assert figures["error_worst_repeating"] == pytest.approx(0.003)
    assert figures["counted_repeats_worst"] == pytest.approx(0.25)
    assert "counted_repeats_worst" not in sampled_figures(compared, {}, HELD, [notice(1)])
    assert "error_worst_repeating" not in sampled_figures(compared[:1], repeats, HELD, [notice(1)])


def test_jobs_that_decide_from_seconds_are_counted_twice() -> None:
    assert {job.name for job in JOBS if job.varies} == {"hypertune", "stannis", "planner", "disturbed", "two-disturbed"}
    # Rounds of two runs are compared one by one, so none may end at a target.
    assert not [job.name for job in JOBS if job.varies and "target" in job.job]


def test_every_job_is_a_job_on_an_array() -> None:
    assert len({job.name for job in JOBS}) == len(JOBS) == 11
    assert {job.content(0).get("mode", "federated") for job in JOBS} == {"sync", "federated"}
    for job in JOBS:
        check_mode(JobConfig.model_validate(job.content(3)), job.name)
        assert job.content(3)["seed"] == 3
        for clock in ("counted", "sampled", "native"):
            assert ArrayConfig.model_validate(array_on_clock(job.config(), clock)).name == f"bench-sampled-{job.name}"


def test_each_replay_has_draws_of_its_own() -> None:
    passes = [
        [DevicePass(device=device, steps=[SeriesStep(records=8, seconds=1 + 0.01 * ((7 * number) % 5))])]
        for number in range(30)
        for device in ("csd-00",)
    ]
    held = resample(StepSeries(sync=True, passes=passes, round_passes=[30]), 8)
    assert len(held) == 8
    assert len({each.error for each in held}) > 1

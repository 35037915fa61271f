"""What the clock ``sampled`` gains and how far it is off: eleven jobs, each also fully counted."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from csd_emu.config.array_file import QEMU, SAMPLED, ArrayConfig
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, RunningDrives, request_run
from csd_lab.bench.sampling.sampled_jobs import JOBS, SampledJob
from csd_lab.bench.sampling.unseen_disturbance import MOST_STEPS, Notice, notice_disturbances
from csd_lab.clocks.clock_comparison import ClockComparison, compare_runs, errors_of
from csd_lab.clocks.clock_runs import ClockRun, KeptRuns, RunClock, array_on_clock, run_key
from csd_lab.clocks.counted_repeat import CountedRepeat, compare_repeat, decision_figures
from csd_lab.clocks.resampling import Held, RecordedSteps, coverage, replay
from csd_lab.clocks.step_series import StepSeries, record_federated, series_of_run

RESAMPLINGS = 100
_FOLDER = "sampled"
# Drives of the quickstart's job whose wall seconds are measured.
DRIVES_24 = 24
CLOCKS: tuple[RunClock, ...] = ("counted", "sampled", "native")


def bench_sampled(bench: Bench, quick: bool = False) -> BenchReport:
    """Error, coverage and cost of the clock `sampled` beside fully counted runs of eleven jobs.

    Run each job counted, sampled, and on native drives; with `quick` two of the jobs, and 20 resamplings. Jobs in which
    a tuner or planner decides from measured seconds, or a task competes, are counted twice: two counted runs may decide
    otherwise (beside a competing task time slices decide), and what does not repeat on the clock `counted` says nothing
    of another clock.

    Counted runs, and the recorded steps of federated jobs, stay in the folder `sampled` of the cache: they are not made
    again while job, array, seed and agent are the same. Remove it to have them made anew.

    Figures: `wall_over_counted`, wall seconds of all sampled runs over those of the counted ones, whole commands
    with the template there; `error_worst` and `error_median`, |sampled / counted - 1| of a whole run: of drives'
    device seconds or of array seconds, whichever is larger; `error_worst_repeating`, without the jobs whose two counted
    runs did not decide all alike; `counted_repeats_worst`, the largest |counted / counted again - 1| of such seconds,
    of the jobs that were counted twice; `error_worst_equal_work` and `error_median_equal_work`,
    the same where each run's seconds are held against what tables expect of the batches that it chose; `coverage`,
    the share of stated 95 % intervals of a drive's seconds that hold the counted ones, over resamplings of the
    counted steps of each job; `weights_difference`, the largest absolute difference of a final weight from those of
    native drives that decided the same; `decisions_equal`, the share of decisions of tuners, planner and placement
    that counted and sampled run have both: of a job whose two counted runs decided otherwise, of what these have alike;
    `decisions_equal_all`, of all decisions of counted and sampled run; `decisions_repeat`, the share that two counted
    runs have both; `noticed`, the most steps until a disturbance was seen of which nobody had told;
    `drives_24_wall_seconds`, the quickstart's job on 24 drives.
    """
    jobs = [job for job in JOBS if job.quick or not quick]
    kept = KeptRuns(bench.paths.cache / _FOLDER, frozenset({SAMPLED, "native"}))
    compared: list[ClockComparison] = []
    held: dict[str, list[Held]] = {}
    repeats: dict[str, CountedRepeat] = {}
    for number, job in enumerate(jobs):
        runs: dict[RunClock, ClockRun] = {clock: _run(bench, job, kept, clock) for clock in CLOCKS}
        compared.append(compare_runs(job.name, job.config().name, job.config().core_model, runs))
        if job.varies:
            again = _run(bench, job, kept, "counted", again=True)
            repeats[job.name] = compare_repeat(compared[-1], runs["counted"], again)
        held[job.name] = resample(_series(bench, job, kept, runs["counted"]), RESAMPLINGS // (5 if quick else 1))
        bench.progress.advance((number + 1) / len(jobs))
    bench.progress.stage(f"the quickstart's job on {DRIVES_24} drives")
    many = kept.run("drives-24", JOBS[0].content(bench.seed), _many_drives(), "sampled")
    notices = notice_disturbances(bench)
    figures = sampled_figures(compared, repeats, held, notices) | {"drives_24_wall_seconds": many.wall_seconds}
    samples = {
        "jobs": [sampled_job(comparison, repeats.get(comparison.job), held[comparison.job]) for comparison in compared],
        "noticed": msgspec.to_builtins(notices),
        "clocks": dict.fromkeys(("wall_over_counted", "drives_24_wall_seconds"), "wall"),
    }
    return bench.report("sampled", figures, samples)


def sampled_figures(
    compared: Sequence[ClockComparison],
    repeats: Mapping[str, CountedRepeat],
    held: Mapping[str, Sequence[Held]],
    notices: Sequence[Notice],
) -> dict[str, float]:
    """Return the figures of the compared jobs; those of which nothing was compared are missing.

    `repeats` has the two counted runs of jobs that are counted twice.
    """
    weights = [each.weights_difference for each in compared if each.weights_difference is not None]
    repeating = [each for each in compared if each.job not in repeats or repeats[each.job].repeats]
    figures = {
        "wall_over_counted": sum(each.sampled_wall_seconds for each in compared)
        / sum(each.counted_wall_seconds for each in compared),
        **error_figures(compared),
        **decision_figures(compared, repeats),
        "coverage": coverage([each for job in held.values() for each in job]),
        "weights_compared": float(len(weights)),
        "noticed": float(max(MOST_STEPS if each.steps is None else each.steps for each in notices)),
    }
    if weights:
        figures["weights_difference"] = max(weights)
    if repeating:
        figures["error_worst_repeating"] = error_figures(repeating)["error_worst"]
    if repeats:
        figures["counted_repeats_worst"] = max(each.seconds_worst for each in repeats.values())
    return figures


def error_figures(compared: Sequence[ClockComparison]) -> dict[str, float]:
    """Return worst and median errors: of drives or of arrays, whichever is larger."""
    figures = {}
    for equal_work, ending in ((False, ""), (True, "_equal_work")):
        errors = [errors_of(compared, of_array, equal_work) for of_array in (False, True)]
        figures[f"error_worst{ending}"] = max(max(each, default=0.0) for each in errors)
        figures[f"error_median{ending}"] = max(statistics.median(each) if each else 0.0 for each in errors)
    return figures


def sampled_job(comparison: ClockComparison, repeat: CountedRepeat | None, held: Sequence[Held]) -> dict[str, Any]:
    """Return a job's samples: the comparison, its second counted run if it has one, and its resamplings."""
    sample: dict[str, Any] = msgspec.to_builtins(comparison)
    sample["seconds"] = [
        msgspec.to_builtins(each) | {"error": each.error, "inside": each.inside} for each in comparison.seconds
    ]
    sample["wall_over_counted"] = comparison.wall_over_counted
    if repeat is not None:
        sample["counted_again"] = msgspec.to_builtins(repeat) | {"seconds_worst": repeat.seconds_worst}
    sample["resampled"] = {
        "coverage": coverage(held),
        "error_mean": statistics.fmean(each.error for each in held),
        "error_worst": max(abs(each.error) for each in held),
        "half_width_mean": statistics.fmean(each.half_width for each in held),
    }
    return sample


def resample(series: StepSeries, times: int) -> list[Held]:
    """Return what came of each drive's seconds in so many replays of a job."""
    recorded = RecordedSteps(series)
    return [held for seed in range(times) for held in replay(series, seed, recorded)]


def _run(bench: Bench, job: SampledJob, kept: KeptRuns, clock: RunClock, again: bool = False) -> ClockRun:
    bench.progress.stage(f"{job.name}: {clock}{' again' * again}")
    return kept.run(job.name, job.content(bench.seed), job.config(), clock, again)


def _many_drives() -> ArrayConfig:
    quickstart = JOBS[0]
    return dataclasses.replace(quickstart, array={**quickstart.array, "devices": DRIVES_24}).config()


def _series(bench: Bench, job: SampledJob, kept: KeptRuns, counted: ClockRun) -> StepSeries:
    """Return the counted seconds of each of a job's steps; a federated one runs on virtual machines for that."""
    config, content = job.config(), job.content(bench.seed)
    if content.get("mode") == "sync":
        return series_of_run(counted.read_rounds(), [device.name for device in config.list_devices()])
    file = kept.folder / f"{job.name}-series-{run_key(content, config, 'counted')}.json"
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=StepSeries)
    request = request_run(type(config).model_validate(array_on_clock(config, "counted")), content)
    assert request.config.engines == (QEMU,)

    async def work(drives: RunningDrives) -> StepSeries:
        return await record_federated(request, {session.device: session for session in drives.sessions})

    bench.progress.stage(f"{job.name}: every step of its own")
    series = bench.on_array(request.array, work)
    file.write_bytes(msgspec.json.encode(series))
    return series

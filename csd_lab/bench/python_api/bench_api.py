"""What the Python interface and the command line make their users wait for, and write."""

from __future__ import annotations

import inspect
import os
import pty
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

import csd_emu
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, temporary_folder

JOB: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "batch_size": 32, "rounds": 1}
ARRAY: dict[str, Any] = {"engine": "native", "drives": 3}
TRACKERS = ["tensorboard", "mlflow", "parquet"]
SIZES, SEEDS = (16, 32, 64, 128), 5
TIMES, TRACKED_ROUNDS, TRACKED_PAIRS = 7, 100, 9
# From import to a DataFrame of a trained model of one's own.
PROGRAM = """import csd_emu as ce
from torch import nn
def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
with ce.Array(drives=2, engine="native") as array:
    rounds = array.train(model=net, data="digits", rounds=1).rounds
"""


def bench_api(bench: Bench, quick: bool = False) -> BenchReport:
    """Time what the Python interface and the command line make their users wait for, on native drives.

    All files have been read before. With `--quick` no sweep and no tracked runs.

    Figures: `import_seconds` of `csd_emu`, beyond Python's own start; `version_seconds` of `csd-emu --version`;
    `first_line_seconds` from the start of `csd-emu run` on a terminal to its first output: medians of seven.
    `further_run_seconds`: one round of the quickstart's model on an array that has trained before, median of seven.
    `lines_to_dataframe`: lines of a program that trains a model of its own, up to a DataFrame; it is run.
    `sweep_over_runs`: wall seconds of a sweep of four batch sizes and five seeds on two arrays, over those of twenty
    times `csd-emu run`. `trackers_cost`: wall seconds of a hundred rounds with TensorBoard, MLflow and Parquet, over
    those without, less 1; median of nine pairs on an open array. `undocumented_names`: public names of `csd_emu`
    without a docstring.
    """
    with temporary_folder() as folder:
        bench.progress.stage("start programs")
        figures = time_starts(folder)
        figures["undocumented_names"] = float(sum(not inspect.getdoc(getattr(csd_emu, n)) for n in csd_emu.__all__))
        bench.progress.stage("train a model of one's own")
        figures["lines_to_dataframe"] = float(run_program(folder))
        bench.progress.stage("run again and again on one array")
        figures["further_run_seconds"] = time_further_runs(folder)
        if not quick:
            bench.progress.stage("sweep, and run the same one by one")
            figures["sweep_over_runs"] = time_sweep(folder) / time_runs(folder)
            bench.progress.stage("track runs of a hundred rounds")
            figures["trackers_cost"] = time_trackers(folder)
    return bench.report("wall", figures, {}, "native")


def median(times: int, measure: Callable[[], float]) -> float:
    """Return the median of so many measurements, after one that does not count."""
    measure()
    return statistics.median(measure() for _ in range(times))


def time_starts(folder: Path) -> dict[str, float]:
    """Return how long programs take to begin."""
    empty = median(TIMES, lambda: time_command([sys.executable, "-c", ""], folder))
    loaded = median(TIMES, lambda: time_command([sys.executable, "-c", "import csd_emu"], folder))
    return {
        "import_seconds": loaded - empty,
        "version_seconds": median(TIMES, lambda: time_command(_command("--version"), folder)),
        "first_line_seconds": median(TIMES, lambda: time_first_output(_command("run", "job.yaml"), folder)),
    }


def time_command(command: Sequence[str], folder: Path) -> float:
    """Return the wall seconds of a command."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - begin


def time_first_output(command: Sequence[str], folder: Path) -> float:
    """Return the wall seconds until a command on a terminal has written something; it is ended then."""
    ours, theirs = pty.openpty()
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs) as started:
        os.close(theirs)
        os.read(ours, 1)
        seconds = time.perf_counter() - begin
        started.terminate()
    os.close(ours)
    return seconds


def run_program(folder: Path) -> int:
    """Run `PROGRAM`, and return how many lines it has."""
    (folder / "program.py").write_text(PROGRAM + "assert len(rounds) == 1\n", encoding="utf-8")
    subprocess.run([sys.executable, "program.py"], cwd=folder, check=True, capture_output=True)
    return PROGRAM.count("\n")


def time_further_runs(folder: Path) -> float:
    """Return the wall seconds of a run on an array that is up."""
    with csd_emu.Array(runs=folder / "further", **ARRAY) as array:

        def further() -> float:
            begin = time.perf_counter()
            array.train(JOB, progress=False)
            return time.perf_counter() - begin

        return median(TIMES, further)


def time_sweep(folder: Path) -> float:
    """Return the wall seconds of a sweep."""
    begin = time.perf_counter()
    swept = csd_emu.sweep(
        JOB, {"batch_size": SIZES}, seeds=range(SEEDS), array=ARRAY, max_parallel=2, folder=folder / "sweep"
    )
    seconds = time.perf_counter() - begin
    assert not any(run.error for run in swept.runs)
    return seconds


def time_runs(folder: Path) -> float:
    """Return the wall seconds of the same runs, one command each."""
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB), encoding="utf-8")
    options = ["--engine", "native", "--drives", "3", "--runs", "runs"]
    return sum(
        time_command(_command("run", "job.yaml", *options, "--set", f"batch_size={size}", "--seed", str(seed)), folder)
        for seed in range(SEEDS)
        for size in SIZES
    )


def time_trackers(folder: Path) -> float:
    """Return what trackers add to a run, as a share."""
    with csd_emu.Array(runs=folder / "tracked", **ARRAY) as array:

        def seconds(track: Sequence[str]) -> float:
            begin = time.perf_counter()
            array.train(JOB, rounds=TRACKED_ROUNDS, track=list(track), progress=False)
            return time.perf_counter() - begin

        seconds(TRACKERS)
        ratios = []
        for number in range(TRACKED_PAIRS):  # whichever comes first: a machine grows faster or slower meanwhile
            order = (TRACKERS, ()) if number % 2 else ((), TRACKERS)
            taken = {bool(track): seconds(track) for track in order}
            ratios.append(taken[True] / taken[False])
        return statistics.median(ratios) - 1


def _command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "csd-emu"), *arguments]

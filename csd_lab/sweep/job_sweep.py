"""Sweep: a job trained with many values of its keys, over seeds; it goes on where an earlier one ended."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from csd_emu.util.config_files import parse_config
from csd_lab.sweep.cluster_tasks import ClusterTasks
from csd_lab.sweep.own_arrays import OwnArrays, RunTrainer
from csd_lab.sweep.sweep_points import Point, ValueRange, Values, by_seed, check_count, list_points
from csd_lab.sweep.swept_run import THE_MORE, SweptRun
from firmware_agent.common.atomic_files import read_lines
from firmware_agent.common.errors import ConfigurationError
from host.app.python_api.job_content import JobLike, plain_value, read_job
from host.app.python_api.run_result import RunResult
from host.config.job_file import JobConfig
from host.config.overrides import NO_KEYS, merge_keys, override
from host.core.owned_files import writing
from host.monitoring.runs.run_comparison import FIGURES

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

POINTS_FILE = "sweep.jsonl"
_MOST_LINE_BYTES = 1 << 20


class SweptPoint(msgspec.Struct, frozen=True):
    """Runs of a sweep that differ in their seeds alone.

    Attributes:
        point: key -> value, without the seed.
        mean: of the objective.
        deviation: sample standard deviation over the seeds; None of one.
        seeds: how many have ended.
        clock: of the figure's seconds.
    """

    point: dict[str, Any]
    mean: float
    deviation: float | None
    seeds: int
    clock: str


class SweptReport(msgspec.Struct, frozen=True):
    """`csd-emu sweep`: its points, the best first, and its runs."""

    objective: str
    points: list[SweptPoint]
    runs: list[SweptRun]


class SweepResult:
    """Runs of a sweep, one a point and seed.

    Attributes:
        runs: those that were trained, also those that failed.
        objective: the figure that decides which point is best.
    """

    def __init__(self, runs: Sequence[SweptRun], objective: str) -> None:
        """Take the runs."""
        # A sampler may choose a point again, which is the same run.
        self.runs, self.objective = list({run.sha256: run for run in runs}.values()), objective

    @property
    def table(self) -> pandas.DataFrame:
        """One row a run: its point, clock, figures, directory, and error."""
        from host.monitoring.runs.run_tables import make_frame

        return make_frame(
            [
                {**run.point, "clock": run.clock, **run.figures, "directory": run.directory, "error": run.error}
                for run in self.runs
            ]
        )

    @property
    def points(self) -> list[SweptPoint]:
        """The points whose runs have ended, the best mean of the objective first."""
        found: dict[bytes, list[SweptRun]] = {}
        for run in self.runs:
            if self.objective in run.figures:
                found.setdefault(_key(_without_seed(run.point)), []).append(run)
        points = [_describe(runs, self.objective) for runs in found.values()]
        return sorted(points, key=lambda each: each.mean, reverse=self.objective in THE_MORE)

    @property
    def best(self) -> Point:
        """The point with the best mean of the objective.

        Raises:
            ConfigurationError: no run has ended.
        """
        if not (points := self.points):
            raise ConfigurationError("no run of the sweep has ended")
        return points[0].point

    def results(self) -> list[RunResult]:
        """Return the runs that have ended without a failure."""
        return [RunResult(run.directory) for run in self.runs if not run.error]

    def plot(self) -> Figure:
        """Return the objective of each run, by point, the best first."""
        from matplotlib.figure import Figure

        points = self.points
        figure = Figure(figsize=(8, 1.5 + 0.35 * len(points)), layout="constrained")
        axes = figure.subplots()
        for row, each in enumerate(points):
            runs = [run for run in self.runs if run.figures and _without_seed(run.point) == each.point]
            values = [run.figures[self.objective] for run in runs]
            axes.plot(values, [row] * len(values), "o", color="#1f5fa8")
        axes.set_yticks(range(len(points)), [", ".join(f"{k}={v}" for k, v in each.point.items()) for each in points])
        axes.invert_yaxis()
        axes.set_xlabel(" / ".join(dict.fromkeys([f"{self.objective} ({each.clock})" for each in points])))
        return figure


class SweepPlace(TypedDict, total=False):
    """Where a sweep trains, and what is told of it.

    Attributes:
        array: an array file, or arguments of `Array`, such as ``{"drives": 3, "engine": "native"}``.
        max_parallel: so many arrays at once, 1 by default. Drives share this machine's processors: with the clock
            ``wall`` they disturb each other.
        cluster: train each run in a task of its own, by submitit: ``slurm``, or ``local`` for processes of this
            machine; `max_parallel` tasks are submitted at once.
        cluster_options: of submitit's executor, such as ``{"timeout_min": 60, "slurm_partition": "cpu"}``.
        folder: for the run directories and ``sweep.jsonl``; what is there already is not trained again.
        on_run: is shown each run that has ended.
    """

    array: str | os.PathLike[str] | Mapping[str, Any]
    max_parallel: int
    cluster: str | None
    cluster_options: Mapping[str, Any]
    folder: str | os.PathLike[str]
    on_run: Callable[[SweptRun], object]


def sweep(
    job: JobLike,
    over: Mapping[str, Values],
    *,
    seeds: Iterable[int] | None = None,
    samples: int | None = None,
    objective: str = "accuracy",
    changes: Mapping[str, Any] = NO_KEYS,
    **place: Unpack[SweepPlace],
) -> SweepResult:
    """Train a job with every combination of values, or with sampled ones, and with each seed.

    >>> csd_emu.sweep("job.yaml", {"batch_size": [16, 32]}, seeds=range(3)).best  # doctest: +SKIP

    Args:
        job: a job file, or its keys.
        over: key -> its values, or a `ValueRange` to sample from.
        seeds: of each point; without them the job's own.
        samples: so many points, chosen by Optuna one after the other for the best `objective`, in place of all.
        objective: a figure of `FIGURES`; of accuracy and rates the most is best, of all others the least.
        changes: keys of the job in place of its own, in all runs.
        place: see `SweepPlace`.

    Raises:
        ConfigurationError: the sweep has no run or too many, or a setting is given twice.
    """
    if objective not in FIGURES:
        raise ConfigurationError(f"objective: {objective!r} is no figure; choose one of {', '.join(FIGURES)}")
    given: dict[str, Any] = {"seed": seeds}
    merge_keys(given, changes, "sweep")
    merge_keys(given, over, "sweep")
    over = {key: each if isinstance(each, ValueRange) else list_values(key, each) for key, each in over.items()}
    content = check_values(job, over, changes)
    seeds = list_values("seed", [content.get("seed", 0)] if seeds is None else seeds)
    array, where = place.get("array", {}), Path(place.get("folder", "sweep"))
    points = [] if samples is not None else by_seed(list_points(over), seeds)
    options = {"file": array} if isinstance(array, str | os.PathLike) else dict(array)
    done = _Done(where, partial(_hash, job, changes, options), place.get("on_run", lambda _: None))
    most, cluster = place.get("max_parallel", 1), place.get("cluster")
    with contextlib.closing(
        OwnArrays(options, where, most)
        if cluster is None
        else ClusterTasks(cluster, place.get("cluster_options", {}), options, where, most)
    ) as trainer:
        train = partial(done.get, job=job, changes=changes, trainer=trainer)
        if samples is None:
            return SweepResult(_train_all(points, train, trainer), objective)
        from csd_lab.sweep.sweep_sampler import sample_points

        return SweepResult(sample_points(over, seeds, samples, objective, train), objective)


def _train_all(points: Sequence[Point], train: Callable[[Point], SweptRun], trainer: RunTrainer) -> list[SweptRun]:
    with ThreadPoolExecutor(trainer.most) as pool:
        try:
            return list(pool.map(train, points))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            trainer.close()  # what is trained now fails, and is tried again when the sweep goes on
            raise


def check_values(job: JobLike, over: Mapping[str, Values], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's content with the first values of all keys, if each value goes with the others' first.

    Raises:
        ConfigurationError: one breaks a rule of the job file, or a key has no value.
    """
    listed = {key: [each.low, each.high] if isinstance(each, ValueRange) else list(each) for key, each in over.items()}
    check_count(math.prod(map(len, listed.values())))
    first = {key: values[0] for key, values in listed.items()}
    with tempfile.TemporaryDirectory() as sources:
        content, where, _ = read_job(job, {**changes, **first}, Path.cwd(), Path(sources))
        for key, values in listed.items():
            for value in values:
                parse_config(override(content, {key: value}, where), JobConfig, where)
        return content


def list_values(key: str, values: Iterable[Any]) -> list[Any]:
    """Return the values of a key as a job file has them; a class or function stays.

    Raises:
        ConfigurationError: one is there twice, or no job file could hold it.
    """
    listed = [each if callable(each) else plain_value(each, f"sweep: {key}") for each in values]
    if twice := [each for number, each in enumerate(listed) if each in listed[:number]]:
        raise ConfigurationError(f"sweep: {key}: {twice[0]!r} is given twice; leave one out")
    return listed


class _Done:
    """The runs of a sweep, kept in its folder."""

    def __init__(self, folder: Path, hash_of: Callable[[Point], str], on_run: Callable[[SweptRun], object]) -> None:
        self._path, self._hash_of, self._on_run = folder / POINTS_FILE, hash_of, on_run
        self._lock, self._runs = threading.Lock(), dict[str, SweptRun]()
        with contextlib.suppress(FileNotFoundError):
            for line in read_lines(self._path, _MOST_LINE_BYTES):
                with contextlib.suppress(msgspec.MsgspecError):  # empty, or cut short
                    run = msgspec.json.decode(line, type=SweptRun)
                    self._runs[run.sha256] = run

    def get(self, point: Point, job: JobLike, changes: Mapping[str, Any], trainer: RunTrainer) -> SweptRun:
        """Return the run of a point; it is trained unless it has been."""
        sha256 = self._hash_of(point)
        if (run := self._runs.get(sha256)) is None or run.error:
            run = msgspec.structs.replace(trainer.train(job, changes, point), sha256=sha256)
            self._runs[sha256] = run
            with self._lock, writing(self._path, "free space, and sweep again to go on"):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with open(self._path, "ab") as file:
                    file.write(b"\n" + msgspec.json.encode(run) + b"\n")  # behind a line that was cut short
        self._on_run(run)
        return run


def report_sweep(result: SweepResult) -> SweptReport:
    """Return what the command prints."""
    return SweptReport(result.objective, result.points, result.runs)


def _describe(runs: Sequence[SweptRun], objective: str) -> SweptPoint:
    values = [run.figures[objective] for run in runs]
    deviation = statistics.stdev(values) if len(values) > 1 else None
    clock = "+".join(sorted({run.clock for run in runs}))
    return SweptPoint(_without_seed(runs[0].point), statistics.fmean(values), deviation, len(runs), clock)


def _without_seed(point: Point) -> Point:
    return {key: value for key, value in point.items() if key != "seed"}


def _hash(job: JobLike, changes: Mapping[str, Any], array: Mapping[str, Any], point: Point) -> str:
    """Return the hash of all that decides a run: job, array, and the texts of the files that they name."""
    with tempfile.TemporaryDirectory() as sources:
        content, _, folder = read_job(job, {**changes, **point}, Path.cwd(), Path(sources))
        files = sorted(_list_files([content, dict(array)], folder))
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
        told = json.dumps([content, array, texts], sort_keys=True, default=str).replace(sources, "")
    return hashlib.sha256(told.encode()).hexdigest()


def _list_files(value: Any, folder: Path) -> set[Path]:
    """Return the files of code, and of arrays, that a job or an array's arguments name."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return set[Path]().union(*(_list_files(each, folder) for each in value))
    path = folder / str(value).partition(":")[0]
    return {path} if path.suffix in (".py", ".yaml") and path.is_file() else set()


def _key(point: Point) -> bytes:
    return msgspec.json.encode(point, order="sorted")

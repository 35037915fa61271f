"""Runs of a sweep as tasks of a cluster, by submitit: Slurm's, or processes of this machine (``local``)."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from csd_lab.sweep.own_arrays import train_point
from csd_lab.sweep.sweep_points import Point, name_point
from csd_lab.sweep.swept_run import SweptRun
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.app.python_api.commands import with_whole_paths
from host.app.python_api.job_content import JobLike, read_job
from host.app.python_api.open_array import Array
from host.config.overrides import NO_KEYS

TASKS_FOLDER = "tasks"
DAY_MINUTES = 24 * 60


class ClusterTasks:
    """A `csd_lab.sweep.own_arrays.RunTrainer` of which each run is a task; it opens an array of its own, and closes it.

    Attributes:
        most: so many tasks are submitted at once.
    """

    def __init__(
        self, cluster: str, options: Mapping[str, Any], array: Mapping[str, Any], runs: Path, most: int
    ) -> None:
        """Submit nothing yet.

        Args:
            cluster: ``slurm`` or ``local``, or another that submitit knows.
            options: of submitit's executor, such as ``timeout_min`` or ``slurm_partition``.
            array: arguments of `Array`.
            runs: folder of run directories, which the cluster's nodes share; the tasks' logs go below it.
            most: see above.

        Raises:
            EnvironmentUnfit: submitit is not installed.
            ConfigurationError: there is no such cluster or option, or no such cluster here.
        """
        try:
            import submitit
        except ImportError as error:
            raise EnvironmentUnfit("tasks are submitted by submitit; pip install 'csd-emu[slurm]'") from error
        self.most, self._runs, self._tasks = most, runs.absolute(), list[Any]()
        self._closed = False
        self._array = with_whole_paths({**array, "runs": str(self._runs)}, Path.cwd())
        if (file := array.get("file")) is not None:
            self._array["file"] = str(Path(file).absolute())
        try:
            self._executor = submitit.AutoExecutor(self._runs / TASKS_FOLDER, cluster=cluster)
            self._executor.update_parameters(**{"name": "csd-emu", "timeout_min": DAY_MINUTES, **options})
        except (ValueError, TypeError, NameError, RuntimeError, AssertionError) as error:
            raise ConfigurationError(f"sweep: cluster {cluster}: {error}") from error

    def train(self, job: JobLike, changes: Mapping[str, Any], point: Point) -> SweptRun:
        """Train one run in a task; one that is lost is a run that has failed."""
        sources = Path(tempfile.mkdtemp(prefix="source-", dir=self._runs / TASKS_FOLDER))
        content, _, folder = read_job(job, {**changes, **point}, Path.cwd(), sources)
        with contextlib.suppress(OSError):  # it has a source
            sources.rmdir()
        task = self._executor.submit(train_task, self._array, with_whole_paths(content, folder.absolute()))
        self._tasks.append(task)
        if self._closed:  # while it was submitted
            task.cancel()
        try:
            run: SweptRun = task.result()
        except Exception as error:  # whatever the cluster says of it
            run = SweptRun({}, error=f"task {task.job_id}: {error}; its log: {task.paths.stderr}")
        return msgspec.structs.replace(run, point=name_point(point))

    def close(self) -> None:
        """Cancel what is not done."""
        self._closed = True
        for task in list(self._tasks):
            with contextlib.suppress(Exception):  # it ended meanwhile, or the cluster is out of reach
                if not task.done():
                    task.cancel()


def train_task(array: Mapping[str, Any], job: Mapping[str, Any]) -> SweptRun:
    """Train a job on an array that is opened for it."""
    with Array(**array) as opened:
        return train_point(opened, job, NO_KEYS, {})

"""Runs of a sweep as tasks of a cluster that does them at once, in this process."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from csd_lab.sweep import cluster_tasks
from csd_lab.sweep.cluster_tasks import ClusterTasks
from csd_lab.sweep.swept_run import SweptRun

JOB = {"model": "digits_cnn", "data": "digits"}


class Executor:
    """As submitit's, of which tasks are done when their result is asked for."""

    def __init__(self, folder: Path, cluster: str) -> None:
        folder.mkdir()
        self.paths = SimpleNamespace(stderr=folder / "7_log.err")

    def update_parameters(self, **_: object) -> None: ...

    def submit(self, work: Callable[..., SweptRun], *arguments: object) -> SimpleNamespace:
        return SimpleNamespace(job_id="7", paths=self.paths, done=lambda: True, result=lambda: work(*arguments))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Arguments of the arrays that tasks open, whose runs fail with 100 records a batch."""
    submitit = pytest.importorskip("submitit")
    arrays: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def array(**arguments: Any) -> Iterator[None]:
        arrays.append(arguments)
        yield

    def train_point(_: None, job: dict[str, Any], *__: object) -> SweptRun:
        if job["batch_size"] == 100:
            raise ValueError("a hundred")
        return SweptRun({}, directory=str(job["batch_size"]))

    monkeypatch.setattr(submitit, "AutoExecutor", Executor)
    monkeypatch.setattr(cluster_tasks, "Array", array)
    monkeypatch.setattr(cluster_tasks, "train_point", train_point)
    return arrays


def test_a_run_is_a_task_that_opens_an_array_of_its_own(tmp_path: Path, opened: list[dict[str, Any]]) -> None:
    tasks = ClusterTasks("local", {}, {"drives": 2}, tmp_path, 1)
    run = tasks.train(JOB, {"rounds": 1}, {"batch_size": 64})
    tasks.close()
    assert (run.error, run.point, run.directory) == ("", {"batch_size": 64}, "64")
    assert [arguments["drives"] for arguments in opened] == [2]
    assert opened[0]["runs"] == str(tmp_path)


def test_a_task_that_fails_is_a_run_with_an_error_that_names_it(tmp_path: Path, opened: list[dict[str, Any]]) -> None:
    run = ClusterTasks("local", {}, {}, tmp_path, 1).train(JOB, {}, {"batch_size": 100})
    assert run.error == f"task 7: a hundred; its log: {tmp_path / 'tasks' / '7_log.err'}"
    assert len(opened) == 1

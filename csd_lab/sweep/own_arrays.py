"""Arrays on which a sweep trains, opened by its own process."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from csd_lab.sweep.sweep_points import Point, name_point
from csd_lab.sweep.swept_run import SweptRun
from firmware_agent.common.errors import CsdError
from host.app.python_api.job_content import JobLike
from host.app.python_api.open_array import Array
from host.monitoring.runs.run_comparison import FIGURES


class RunTrainer(Protocol):
    """What trains the runs of a sweep.

    Attributes:
        most: so many at once.
    """

    most: int

    def train(self, job: JobLike, changes: Mapping[str, Any], point: Point) -> SweptRun:
        """Train one run, from any thread; a failed one is a `SweptRun` with its error."""
        ...

    def close(self) -> None:
        """End what goes on; a run that is being trained fails."""
        ...


class OwnArrays(contextlib.ExitStack):
    """Arrays, of which each run has one to itself; they are opened when they are needed, and stay up for the next."""

    def __init__(self, options: Mapping[str, Any], runs: Path, most: int) -> None:
        """Open none yet; `options` are those of `Array`, and `runs` is the folder of run directories."""
        super().__init__()
        self.most, self._options, self._runs = most, options, runs
        self._free: queue.LifoQueue[Array | None] = queue.LifoQueue()
        for _ in range(most):
            self._free.put(None)

    def train(self, job: JobLike, changes: Mapping[str, Any], point: Point) -> SweptRun:
        """Train one run on an array that is free (see `RunTrainer.train`)."""
        with self._one() as array:
            return train_point(array, job, changes, point)

    @contextlib.contextmanager
    def _one(self) -> Iterator[Array]:
        array = self._free.get()
        try:
            if array is None:
                array = Array(runs=self._runs, **self._options)
                self.callback(array.close)
            yield array
        finally:
            self._free.put(array if array is not None and array.alive else None)


def train_point(array: Array, job: JobLike, changes: Mapping[str, Any], point: Point) -> SweptRun:
    """Train a job with the keys of a point on an array, and return what it came to."""
    handle = array.submit(job, **changes, **point)
    try:
        result = handle.result()
    except CsdError as error:
        return SweptRun(name_point(point), directory=str(handle.directory or ""), error=str(error))
    except BaseException:
        handle.cancel()
        raise
    figures = {name: value for name, read in FIGURES.items() if (value := read(result.summary)) is not None}
    return SweptRun(name_point(point), directory=str(result.directory), clock=result.clock, figures=figures)

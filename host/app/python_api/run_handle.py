"""Handles of runs that go on in another process, in the manner of `concurrent.futures.Future`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import CsdError, DeviceError, RunCancelled
from host.app.python_api.array_connection import Ticket
from host.app.python_api.run_result import RunResult, load_result
from host.core.failures import failed_run
from host.core.summary import Summary
from host.monitoring.run_directory import RECORDS_FILE
from host.monitoring.runs.run_listing import is_running

RUN_SECONDS = 1800.0
_POLL_SECONDS = 0.05
RoundCallback = Callable[[Mapping[str, Any]], object]
"""Is given each round's record; a run is cancelled when it returns True."""


class Run(ABC):
    """A run that goes on, or has ended.

    >>> run = array.submit("job.yaml", rounds=6)  # doctest: +SKIP
    >>> run.wait_for_round(2); run.cancel(); print(run.exception())  # doctest: +SKIP
    """

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended, however."""

    @property
    @abstractmethod
    def directory(self) -> Path | None:
        """Its run directory, once it has one."""

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it has ended, and return whether it has; without a limit, for as long as it takes."""
        with contextlib.suppress(DeviceError):
            for _ in self._until_done(timeout_seconds, "the run has not ended"):
                pass
        return self.done

    @abstractmethod
    def cancel(self) -> None:
        """End it after what it does now; its directory has the rounds until then, and can be resumed."""

    @abstractmethod
    def _summary(self, timeout_seconds: float | None) -> Summary:
        """Wait for the end, and return how it was."""

    def result(self, timeout_seconds: float | None = None) -> RunResult:
        """Wait for the end and return how it was.

        Raises:
            CsdError: the run failed, with an error of the class that `csd-emu run` would report.
            UserCodeFailed: code of the user's failed in it, whatever the job's `on_failure` says.
            DeviceError: it takes longer than so many seconds of wall time.
        """
        summary = self._summary(timeout_seconds)
        if summary.failures:
            raise failed_run(summary.failures, summary.run_directory)
        return RunResult(summary.run_directory)

    def exception(self, timeout_seconds: float | None = None) -> CsdError | None:
        """Wait for the end and return the error that `result` raises; None if it raises none."""
        try:
            self.result(timeout_seconds)
        except CsdError as error:
            return error
        return None

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield what the run has written down so far: rounds and events, in order."""
        yield from read_records(self.directory)[0]

    def logs(self) -> list[str]:
        """Return what happened to drives so far, a line each."""
        return [
            f"{record['device']} {record['what']}: {record['detail']}"
            for record in self.records()
            if record["kind"] == "event"
        ]

    def follow(self, on_round: RoundCallback, timeout_seconds: float | None = None) -> None:
        """Show each round to `on_round` as it ends, until the run does; cancel it when that returns True.

        Raises:
            DeviceError: it takes longer than so many seconds of wall time.
        """
        read = 0
        for _ in self._until_done(timeout_seconds, "the run has not ended"):
            records, read = read_records(self.directory, read)
            for record in records:
                if record["kind"] == "round" and on_round(record) is True:
                    self.cancel()

    def wait_for_round(self, number: int, timeout_seconds: float = RUN_SECONDS) -> None:
        """Wait until round `number` is done.

        Raises:
            DeviceError: the run ended before, or so many wall seconds passed.
        """
        for _ in self._until_done(timeout_seconds, f"round {number} was not done"):
            if any(record.get("round") == number for record in self.records()):
                return
        self._summary(0.0)
        raise DeviceError(f"the run has ended without a round {number}")

    def _until_done(self, timeout_seconds: float | None, told: str) -> Iterator[None]:
        """Yield time and again until it has ended, and once more afterwards."""
        pause = threading.Event()
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            ended = self.done  # asked first: a run may write its last round and end in between
            yield
            if ended:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise DeviceError(f"{told} within {timeout_seconds:g} s of wall time; allow more")
            pause.wait(_POLL_SECONDS)


class SubmittedRun(Run):
    """A run on an array that this program has open."""

    def __init__(self, ticket: Ticket, cancel: Callable[[], object]) -> None:
        """Take the ticket for the answer, and what cancels the run."""
        self._ticket, self._cancel = ticket, cancel

    @property
    def done(self) -> bool:
        """Whether it has ended, however."""
        return self._ticket.done()

    @property
    def directory(self) -> Path | None:
        """Its run directory, once it has one."""
        return self._ticket.directory

    def cancel(self) -> None:
        """End it after what it does now."""
        if not self.done:
            self._cancel()

    def _summary(self, timeout_seconds: float | None) -> Summary:
        answer = self._ticket.take(timeout_seconds)
        if (hint := answer.pop("hint", None)) is not None:  # said once
            logging.getLogger(__name__).warning("%s", hint)
        return msgspec.convert(answer["summary"], Summary)


class OpenedRun(Run):
    """A run of another process, which only its directory is known of."""

    def __init__(self, directory: Path) -> None:
        """Take its run directory."""
        self._path = directory

    @property
    def done(self) -> bool:
        """Whether it has ended, however: whoever trains holds the directory's lock."""
        return not is_running(self._path)

    @property
    def directory(self) -> Path:
        """Its run directory."""
        return self._path

    def cancel(self) -> None:
        """End it after what it does now."""
        from host.monitoring.run_registry import list_live

        for live in list_live(Paths.default().arrays):
            if Path(live.run_directory) == self._path.absolute():
                os.kill(live.process.pid, signal.SIGINT)

    def _summary(self, timeout_seconds: float | None) -> Summary:
        for _ in self._until_done(timeout_seconds, "the run has not ended"):
            pass
        result = RunResult(self._path)
        if result.data.summary is None:
            raise RunCancelled(
                f"{self._path}: the run was stopped before its end; csd-emu run --resume goes on with it"
            )
        return result.summary


def open_run(directory: str | os.PathLike[str]) -> Run:
    """Return the handle of a run by its directory, also one that another process trains.

    >>> csd_emu.open("runs/20261129-120000-job").wait_for_round(3)  # doctest: +SKIP

    Raises:
        ConfigurationError: it is no run directory.
    """
    return OpenedRun(load_result(directory).directory)


def read_records(directory: Path | None, start: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the records of a run directory from a byte on, and where those that are not yet written will begin."""
    if directory is None or not (path := directory / RECORDS_FILE).exists():
        return [], start
    with open(path, "rb") as file:
        file.seek(start)
        whole = file.read().rpartition(b"\n")
    return [json.loads(line) for line in whole[0].splitlines()], start + len(whole[0]) + len(whole[1])

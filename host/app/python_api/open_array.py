"""Array of emulated drives that a program has open: runs go on it, one after the other."""

from __future__ import annotations

import os
import secrets
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from csd_emu.config.engine_names import group_of
from firmware_agent.common.errors import ConfigurationError
from host.app.python_api.array_connection import NAME_PREFIX, ArrayConnection
from host.app.python_api.job_content import JobLike, read_job
from host.app.python_api.round_bar import show_rounds
from host.app.python_api.run_handle import RoundCallback, Run, SubmittedRun
from host.app.python_api.run_result import RunResult

OPEN_SECONDS, CLOSE_SECONDS, INJECT_SECONDS = 3600.0, 300.0, 600.0


class OpenArray:
    """An array that a process keeps.

    Attributes:
        name: of the array, unique to this program.
        engine: on which it runs.
        devices: names of its drives.
        runs: folder of run directories.
    """

    def __init__(
        self, connection: ArrayConnection, name: str, opened: Mapping[str, Any], folder: Path, runs: Path
    ) -> None:
        """Take what a process has opened; paths in jobs are relative to `folder`."""
        self._connection, self._folder = connection, folder
        self.name, self.runs = name, runs
        self.engine: str = opened["engine"]
        self.devices: list[str] = opened["devices"]
        self._consoles = {device: Path(path) for device, path in opened["consoles"].items()}
        self._submitted: list[Run] = []

    @property
    def alive(self) -> bool:
        """Whether the process that keeps it runs."""
        return self._connection.alive

    @property
    def busy(self) -> bool:
        """Whether a run goes on."""
        return any(not run.done for run in self._submitted) and self._connection.alive

    def train(
        self,
        job: JobLike | None = None,
        *,
        on_round: RoundCallback | None = None,
        progress: bool = True,
        timeout_seconds: float | None = None,
        **changes: Any,
    ) -> RunResult:
        """Train a job and return how it ended; a missed target is no error (see `RunResult.summary`).

        >>> run = array.train(model="digits_cnn", data="digits", rounds=2)  # doctest: +SKIP

        Args:
            job: a job file, or what would be in one; without it `changes` say all.
            on_round: is given each round's record as it ends; the run is cancelled when it returns True.
            progress: show a bar of rounds where somebody watches, in a terminal or a notebook.
            timeout_seconds: of wall time; None for as long as it takes.
            changes: keys of the job file in place of its own, such as ``rounds=2``; of a section as
                ``**{"sync.precision": "fp16"}``. ``model`` may be a class or function, also one that a notebook
                defines; ``data`` may be the name of its source.

        Raises:
            ConfigurationError: the job breaks a rule.
            UserCodeFailed: code of the user's failed in it; the message has its traceback.
            RunCancelled: `on_round` has ended it.
            CsdError: the run failed.
        """
        run = self.submit(job, **changes)
        try:
            with show_rounds(progress) as bar:
                run.follow(lambda record: bar(record) or (on_round is not None and on_round(record)), timeout_seconds)
            return run.result(timeout_seconds)
        except BaseException:
            run.cancel()
            run.wait(CLOSE_SECONDS)
            raise

    def submit(self, job: JobLike | None = None, **changes: Any) -> Run:
        """Begin to train a job, and return at once; see `train`.

        Raises:
            ConfigurationError: a run goes on, or the job breaks a rule that shows before it is sent.
        """
        if self.busy:
            raise ConfigurationError("a run is going on; wait for its result, or cancel it, before the next")
        connection = self._connection
        ticket = connection.send("run", **self._read_job(job, changes), runs=str(self._runs_folder()))
        self._submitted.append(SubmittedRun(ticket, lambda: connection.send("cancel", run=ticket.number)))
        return self._submitted[-1]

    def up(self, job: JobLike | None = None, timeout_seconds: float | None = None, **changes: Any) -> None:
        """Have the array up with the data of a job, for whoever would injure a drive before the job begins."""
        self._connection.ask("up", timeout_seconds, **self._read_job(job, changes))

    def inject(
        self,
        device: str,
        fault: str,
        *,
        weight: int | None = None,
        after_seconds: float = 0.0,
        duration_seconds: float | None = None,
        timeout_seconds: float = INJECT_SECONDS,
    ) -> str:
        """Inject a fault into one drive of an array that is up, now or while a run goes on; return what was done.

        >>> array.inject("csd-01", "slow", weight=50)  # doctest: +SKIP

        Raises:
            ConfigurationError: there is no such drive or fault, or the array is not up (see `up`).
            CsdError: it could not be done.
        """
        values = {"device": device, "fault": fault, "weight": weight, "after": after_seconds}
        return str(self._connection.ask("inject", timeout_seconds, **values, duration=duration_seconds)["detail"])

    def console(self, device: str) -> str:
        """Return what a drive's console says; empty if it is not up."""
        try:
            return self._consoles[device].read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def _runs_folder(self) -> Path:
        """Return the folder that the next run's directory is made in."""
        return self.runs

    def _read_job(self, job: JobLike | None, changes: Mapping[str, Any]) -> dict[str, Any]:
        content, where, folder = read_job(job, changes, self._folder, self._connection.log.parent)
        return {"job": content, "where": where, "folder": str(folder)}


class Array(OpenArray):
    """Emulated drives, kept by a process beside the program, which ends with it.

    >>> with csd_emu.Array(drives=3, engine="native") as array:  # doctest: +SKIP
    ...     run = array.train(model="digits_cnn", data="digits", rounds=4, seed=0)
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | None = None,
        *,
        drives: int | None = None,
        profile: str | None = None,
        runs: str | os.PathLike[str] = "runs",
        **keys: Any,
    ) -> None:
        """Prepare an array; drives come up with the first job and stay up for the next ones.

        Args:
            file: an array file.
            drives: so many drives, of one `profile`; without a file 2 of `newport`.
            profile: see above.
            runs: folder for run directories.
            keys: of an array file's top level, such as ``engine="native"``; in place of the file's own.

        Raises:
            EnvironmentUnfit: this machine cannot run its engine.
            ConfigurationError: no array can be like that, or one setting is given twice.
        """
        content = array_keys(None if file is None else Path(file).absolute(), drives, profile, keys)
        name, folder = f"{NAME_PREFIX}{os.getpid()}-{secrets.token_hex(2)}", Path.cwd()
        scratch = tempfile.TemporaryDirectory(prefix="csd-python-", ignore_cleanup_errors=True)
        connection = ArrayConnection(name, Path(scratch.name) / "array.log")
        # Also when nobody closes it: a cell of a notebook is run again, and the array before is nobody's.
        self._close = weakref.finalize(self, _close, os.getpid(), connection, scratch)
        try:
            opened = connection.ask("open", OPEN_SECONDS, keys=content, folder=str(folder))
        except BaseException:
            self._close()
            raise
        super().__init__(connection, name, opened, folder, Path(runs).absolute())
        if left := opened["left"]:
            warnings.warn(f"{', '.join(left)}: left running by a program that is gone; ended now", stacklevel=2)

    def close(self) -> None:
        """End what runs, and every drive; again, it does nothing."""
        self._close()

    def __enter__(self) -> Self:
        """Return the array."""
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Close it."""
        self.close()


def _close(process: int, connection: ArrayConnection, scratch: tempfile.TemporaryDirectory[str]) -> None:
    if process != os.getpid():  # a fork of the program ends, whose array it is not
        scratch._finalizer.detach()  # type: ignore[attr-defined]
    else:
        connection.close(CLOSE_SECONDS)
        scratch.cleanup()


def array_keys(file: Path | None, drives: int | None, profile: str | None, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an array file that the arguments of `Array` stand for, and ``array``, the file.

    Raises:
        ConfigurationError: two of them say which drives there are.
    """
    given = [name for name, value in (("drives", drives), ("profile", profile)) if value is not None]
    if "devices" in keys and given:
        raise ConfigurationError(f"{given[0]} and devices both say which drives there are; leave one out")
    content = dict(keys) if file is None else {"array": str(file), **keys}
    if given or (file is None and "devices" not in keys):
        content["devices"] = group_of(drives, profile)
    return content

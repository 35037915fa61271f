"""An array as a test has it: the fixture's value, its runs and their results."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csd_emu.util.renamed import warn_of_old_name
from firmware_agent.common.errors import ConfigurationError, DeviceError
from host.app.pytest_plugin.keeper_client import KeeperProcess, Ticket

if TYPE_CHECKING:
    from host.core.summary import Summary

JobLike = str | Path | Mapping[str, Any]
_RUN_SECONDS, _INJECT_SECONDS = 1800.0, 600.0
_POLL_SECONDS = 0.05
_SHOWN_LINES = 40


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        summary: its figures (docs/schemas/run.json); each of seconds is on `summary.clock`.
        directory: its run directory, with records, checkpoint, report and metrics.
    """

    summary: Summary
    directory: Path

    @property
    def accuracy(self) -> float:
        """Of the final weights on held-out records, 0 to 1; NaN if no round has ended."""
        return math.nan if self.summary.accuracy is None else self.summary.accuracy

    @property
    def clock(self) -> str:
        """What the device seconds were measured with."""
        return self.summary.clock

    @property
    def records_per_device_second(self) -> float:
        """Records trained on per second of the drives' compute."""
        return self.summary.records_per_device_second

    @property
    def joules_per_record(self) -> float:
        """Energy of the whole array by the power model, per record trained on."""
        return self.summary.joules_per_record

    @property
    def images_per_device_second(self) -> float:
        """Old name of `records_per_device_second`, for one release."""
        warn_of_old_name("images_per_device_second", "records_per_device_second")
        return self.records_per_device_second

    @property
    def joules_per_image(self) -> float:
        """Old name of `joules_per_record`, for one release."""
        warn_of_old_name("joules_per_image", "joules_per_record")
        return self.joules_per_record

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The records of the rounds (records.jsonl)."""
        return [record for record in read_records(self.directory) if record["kind"] == "round"]

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened to drives, in order."""
        return [record for record in read_records(self.directory) if record["kind"] == "event"]

    @property
    def metrics(self) -> str:
        """The metrics at the end of the run, as Prometheus would have scraped them."""
        return (self.directory / "metrics.prom").read_text(encoding="utf-8")


class Running:
    """A run that goes on beside the test."""

    def __init__(self, ticket: Ticket, runs: Path) -> None:
        self._ticket, self.runs = ticket, runs

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._ticket.done()

    @property
    def directory(self) -> Path | None:
        """Its run directory, once it has one."""
        return next(iter(sorted(self.runs.glob("*"))), None) if self.runs.is_dir() else None

    def wait_for_round(self, number: int, timeout_seconds: float = _RUN_SECONDS) -> None:
        """Wait until round `number` is done.

        Raises:
            DeviceError: the run ended before, or so many wall seconds passed.
        """
        pause, deadline = threading.Event(), time.monotonic() + timeout_seconds
        while True:
            ended = self.done  # asked first: a run may write its last round and end in between
            if any(record.get("round") == number for record in read_records(self.directory)):
                return
            if ended:
                self._ticket.take(0.0)
                raise DeviceError(f"the run has ended without a round {number}")
            if time.monotonic() >= deadline:
                raise DeviceError(f"round {number} was not done within {timeout_seconds:g} s of wall time; allow more")
            pause.wait(_POLL_SECONDS)

    def result(self, timeout_seconds: float = _RUN_SECONDS) -> Result:
        """Wait for the end and return how it was.

        Raises:
            CsdError: the run failed, with an error of the class that `csd-emu run` would report.
            UserCodeFailed: code of the user's failed in it, whatever the job's `on_failure` says.
            DeviceError: it takes longer than so many seconds of wall time.
        """
        import msgspec

        from host.core.failures import failed_run
        from host.core.summary import Summary

        summary = msgspec.convert(self._ticket.take(timeout_seconds)["summary"], Summary)
        if summary.failures:
            raise failed_run(summary.failures, summary.run_directory)
        return Result(summary, Path(summary.run_directory))


class CsdArray:
    """An array of emulated drives.

    Attributes:
        name: of the array, unique to this test process.
        engine: on which it runs.
        devices: names of its drives.
        runs: folder of this test's run directories.
        harmed: whether a fault was injected, so that the next test gets another array.
        failed: whether the test has failed.
    """

    def __init__(self, keeper: KeeperProcess, name: str, opened: Mapping[str, Any], folder: Path, runs: Path) -> None:
        """Take what the keeper has opened; `folder` is the test file's, `runs` the test's own."""
        self._keeper, self._folder = keeper, folder
        self.name, self.runs = name, runs
        self.engine: str = opened["engine"]
        self.devices: list[str] = opened["devices"]
        self._consoles = {device: Path(path) for device, path in opened["consoles"].items()}
        self._runs: list[Running] = []
        self.harmed = self.failed = False

    def run(self, job: JobLike, *, timeout_seconds: float = _RUN_SECONDS, **changes: Any) -> Result:
        """Train a job on the array and return how it ended; a missed target is no error (see `Result.summary`).

        Args:
            job: a job file, relative to the test's own, or what would be in one.
            timeout_seconds: of wall time.
            changes: keys of the job file in place of its own, such as ``rounds=2``.

        Raises:
            ConfigurationError: the job breaks a rule.
            CsdError: the run failed.
        """
        return self.start(job, **changes).result(timeout_seconds)

    def start(self, job: JobLike, **changes: Any) -> Running:
        """Begin to train a job, and return at once; whoever starts a run waits for its result."""
        if self.busy:
            raise ConfigurationError("a run is going on; wait for its result before the next")
        runs = self.runs / f"run-{len(self._runs) + 1}"
        running = Running(self._keeper.send("run", **self._read_job(job, changes), runs=str(runs)), runs)
        self._runs.append(running)
        return running

    def up(self, job: JobLike, timeout_seconds: float = _RUN_SECONDS, **changes: Any) -> None:
        """Have the array up with the data of a job, for whoever would injure a drive before the job begins."""
        self._keeper.ask("up", timeout_seconds, **self._read_job(job, changes))

    def inject(
        self,
        device: str,
        fault: str,
        *,
        weight: int | None = None,
        after_seconds: float = 0.0,
        duration_seconds: float | None = None,
        timeout_seconds: float = _INJECT_SECONDS,
    ) -> str:
        """Do harm to one drive, now or while a run goes on, and return what was done (see docs/faults.md).

        The array must be up: start a job, or call `up`.

        Raises:
            ConfigurationError: there is no such drive or fault, or the array is not up.
            CsdError: it could not be done.
        """
        self.harmed = True
        values = {"device": device, "fault": fault, "weight": weight, "after": after_seconds}
        return str(self._keeper.ask("inject", timeout_seconds, **values, duration=duration_seconds)["detail"])

    @property
    def busy(self) -> bool:
        """Whether a run goes on."""
        return any(not running.done for running in self._runs) and self._keeper.alive

    @property
    def metrics(self) -> str:
        """The metrics of the run that goes on or, if none does, of the last one; empty before the first."""
        for running in reversed(self._runs):
            if (directory := running.directory) is not None:
                path = directory / "metrics.prom"
                return path.read_text(encoding="utf-8") if path.exists() else self._scrape()
        return ""

    def console(self, device: str) -> str:
        """Return what a drive's console says; empty if it is not up."""
        try:
            return self._consoles[device].read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def describe(self) -> list[tuple[str, str]]:
        """Return what a report of a failing test shows: where the runs are, events, consoles, metrics."""
        runs = ", ".join(str(running.directory or "a run without a directory") for running in self._runs) or "no run"
        sections = [(f"csd-emu array {self.name}", f"{len(self.devices)} drives ({self.engine}): {runs}")]
        for number, running in enumerate(self._runs, start=1):
            events = [record for record in read_records(running.directory) if record["kind"] == "event"]
            lines = [f"{each['device']} {each['what']}: {each['detail']}" for each in events]
            sections.append((f"csd-emu events of run {number}", "\n".join(lines) or "none"))
        sections += [
            (f"csd-emu console {device}", "\n".join(self.console(device).splitlines()[-_SHOWN_LINES:]) or "nothing")
            for device in self.devices
        ]
        if self._runs:
            # The values alone, without histograms' buckets: a report is read by people.
            values = [line for line in self.metrics.splitlines() if line[:1] != "#" and "_bucket{" not in line]
            sections.append(("csd-emu metrics", "\n".join(values) or "none"))
        return sections

    def save(self, folder: Path) -> None:
        """Copy run directories, consoles and metrics of this test into `folder`, in place of what is there."""
        shutil.rmtree(folder, ignore_errors=True)
        if self.runs.is_dir():
            shutil.copytree(self.runs, folder / "runs")
        (folder / "consoles").mkdir(parents=True, exist_ok=True)
        for device in self.devices:
            (folder / "consoles" / f"{device}.log").write_text(self.console(device), encoding="utf-8")
        (folder / "metrics.prom").write_text(self.metrics, encoding="utf-8")

    def _read_job(self, job: JobLike, changes: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(job, Mapping):
            return {"job": {**job, **changes}, "where": "the job", "folder": str(self._folder)}
        from csd_emu.util.yaml_files import load_yaml  # pydantic and YAML: most tests have their jobs as mappings

        path = self._folder / job
        if not isinstance(content := load_yaml(path), dict):
            raise ConfigurationError(f"{path}: must be a mapping of keys to values; see docs/configuration.md")
        return {"job": {**content, **changes}, "where": str(path), "folder": str(path.parent)}

    def _scrape(self) -> str:
        live = next(iter(self._consoles.values())).parents[2] / "live.json"
        try:
            address = json.loads(live.read_text(encoding="utf-8"))["address"]
            with urllib.request.urlopen(address, timeout=_INJECT_SECONDS) as answer:
                return str(answer.read().decode())
        except (OSError, ValueError, urllib.error.URLError):
            return ""


def read_records(directory: Path | None) -> list[dict[str, Any]]:
    """Return the records of a run directory, without a last line that is being written."""
    path = None if directory is None else directory / "records.jsonl"
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]

"""Listener that tells a job's trackers of its run, on a thread of its own: a slow tracker does not slow the run."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from firmware_agent.common.errors import EnvironmentUnfit, user_errors
from host.config.plugins.kinds import TRACKER
from host.config.plugins.plugin_loading import load_plugin
from host.config.plugins.plugin_section import UserSection
from host.core.console import errors
from host.core.records import RoundRecord, StepRecord
from host.monitoring.run_directory import ARRAY_FILE, JOB_FILE, RECORDS_FILE, REPORT_FILE, SUMMARY_FILE, VERSIONS_FILE
from host.monitoring.run_listener import RunListener, RunStart
from host.monitoring.runs.run_comparison import flatten
from host.monitoring.service_sums import list_figures
from host.monitoring.trackers.tracker import TrackedRun, Tracker
from host.training.rounds.client_figures import name_figures

# Metrics that wait; a tracker that is so far behind is given up. And how long its last ones may take.
_MOST_WAITING = 10_000
_FINISH_SECONDS = 20.0
_FILES = (REPORT_FILE, SUMMARY_FILE, RECORDS_FILE, JOB_FILE, ARRAY_FILE, VERSIONS_FILE)
Call = Callable[[Tracker], None]


class TrackerListener(RunListener):
    """Tells one tracker."""

    def __init__(self, name: str, make: Callable[[], Tracker], run_name: str, settings: Mapping[str, Any]) -> None:
        """Tell nothing yet.

        Args:
            name: of the tracker.
            make: makes it, on its thread; it receives the run.
            run_name: of the run.
            settings: job and array, as in their files.
        """
        self._name, self._make, self._run_name, self._settings = name, make, run_name, settings
        self._calls: queue.Queue[Call | None] = queue.Queue(_MOST_WAITING)
        self._directory: Path | None = None
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def begin(self, start: RunStart) -> None:
        """Tell it of the run."""
        self._directory = directory = Path(start.run_directory)
        parameters = {key: str(value) for key, value in flatten(self._settings)}
        tags = {"clock": start.clock} | read_versions(directory / VERSIONS_FILE)
        run = TrackedRun(self._run_name, directory, parameters, tags)
        self._call(lambda tracker: tracker.begin(run))

    def add_step(self, record: StepRecord, end_seconds: float, clocks: Mapping[str, str]) -> None:
        """Tell it of a synchronous step."""
        self._log(step_metrics(record), record.step)

    def add_round(self, record: RoundRecord) -> None:
        """Tell it of a round."""
        self._log(round_metrics(record), record.round)

    def close(self) -> None:
        """Hand it the run's files, once they are all written, and wait until it is done, for a while."""
        if self._directory is not None:
            files = [path for name in _FILES if (path := self._directory / name).is_file()]
            self._call(lambda tracker: tracker.finish(files))
        if not self._failed:
            with contextlib.suppress(queue.Full):
                self._calls.put_nowait(None)
            self._thread.join(_FINISH_SECONDS)
            if self._thread.is_alive():
                self._give_up(f"is not done {_FINISH_SECONDS:.0f} s after the run")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        if self._directory is not None:  # of a resumed run the past rounds come before, and were told
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            self._call(lambda tracker: tracker.log(finite, step))

    def _call(self, call: Call) -> None:
        try:
            if not self._failed:
                self._calls.put_nowait(call)
        except queue.Full:
            self._give_up(f"is {_MOST_WAITING} calls behind")

    def _work(self) -> None:
        try:
            tracker = self._make()
            while (call := self._calls.get()) is not None and not self._failed:
                call(tracker)
        except user_errors() as error:
            self._give_up(f"failed: {error!r}")

    def _give_up(self, why: str) -> None:
        errors.print(f"csd-emu: tracker {self._name} {why}; the run goes on without it", style="yellow", markup=False)
        self._failed = True  # only now: else `close` does not wait for what is said


def load_trackers(names: Sequence[str], run_name: str, settings: Mapping[str, Any]) -> list[TrackerListener]:
    """Return the listeners of a job's `track`.

    Raises:
        PluginError: one is not known, or broken.
        EnvironmentUnfit: a package that one needs is not installed.
    """
    made = []
    for name in names:
        if name in TRACKER.entries:
            kind = TRACKER.load(name)
            if missing := [each for each in kind.packages if importlib.util.find_spec(each) is None]:
                raise EnvironmentUnfit(f"track: {name} needs {missing[0]}; pip install 'csd-emu[{name}]'")
        else:
            kind = load_plugin(TRACKER, UserSection(name=name), Path.cwd()).target
            TRACKER.check_class(kind, name)
        made.append((name, kind))
    return [TrackerListener(name, kind, run_name, settings) for name, kind in made]


def read_versions(path: Path) -> dict[str, str]:
    """Return the versions of the host's packages, as a run has written them down."""
    try:
        return {str(key): str(value) for key, value in msgspec.json.decode(path.read_bytes())["host"].items()}
    except (OSError, msgspec.MsgspecError, KeyError, AttributeError, TypeError):
        return {}


def round_metrics(record: RoundRecord) -> dict[str, float]:
    """Return the metrics of a round: of all, and under ``drives/NAME/`` of each device."""
    joules, called = record.total_joules, name_figures(part.metrics for part in record.devices)
    return {
        "test/accuracy": record.accuracy,
        **{f"test/{name}": value for name, value in record.metrics.items()},
        "test/loss": record.test_loss,
        "train/loss": record.train_loss,
        "throughput/records_per_device_second": record.records_per_device_second,
        "throughput/records_per_array_second": record.samples / record.array_seconds if record.array_seconds else 0.0,
        "time/array_seconds": record.end_seconds,
        "energy/joules": joules,
        "energy/joules_per_record": joules / record.samples if record.samples else math.nan,
        "drives/lost": float(len(record.lost)),
        **{
            f"drives/{part.device}/{name}": value
            for part in record.devices
            for name, value in (
                ("loss", part.loss),
                ("device_seconds", part.device_seconds.total),
                ("joules", math.fsum(part.energy_joules.values())),
                *((f"service/{name}", float(value)) for name, value in list_figures(part.service).items()),
                *((called[name], value) for name, value in part.metrics.items()),
            )
        },
    }


def step_metrics(record: StepRecord) -> dict[str, float]:
    """Return the metrics of a synchronous step."""
    return {
        "step/loss": record.loss,
        "step/learning_rate": record.learning_rate,
        "step/array_seconds": record.array_seconds,
        "step/records": float(record.samples),
    }

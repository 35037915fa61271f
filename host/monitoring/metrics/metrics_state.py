"""Metrics of a run: series that grow with its records and events.

**Drives that are gone.** A drive that has no session at the end of two rounds in a row (the one in which it was lost,
and the next) is gone: its series are no longer served, as Prometheus' practice is for what no longer exists. Of a gone
drive remain `csd_device_up` 0, `csd_device_state` lost and the counts of its errors and rejoins, for alerts need them;
and energy, power and elapsed time as long as the records charge energy to it, for a drive that does not answer still
draws power. When it rejoins, all its series are back and its counters go on where they were.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import metadata

from host.core.records import EventKind, EventRecord, RetuneRecord, RoundRecord, StepRecord
from host.core.run_stats import RunStats
from host.monitoring.metrics import metric_names as names
from host.monitoring.metrics.calibrated import Calibrated
from host.monitoring.metrics.metric import Metric
from host.monitoring.metrics.round_counting import (
    WALL,
    add_round,
    begin_array,
    begin_device,
    show_bands,
)
from host.monitoring.metrics.series_store import Store
from host.monitoring.metrics.step_counting import add_retune, add_servers, add_step, begin_servers, show_servers
from host.monitoring.run_facts import DeviceFacts, RunFacts
from host.monitoring.run_listener import RunListener, RunStart
from host.training.contributions import reason_of

DEFINED, BOOTING, READY, TRAINING, LOST = STATES = ("defined", "booting", "ready", "training", "lost")
_ERRORS = {EventKind.LOST: "lost", EventKind.FAILED: "failed", EventKind.REFUSED: "refused"}
_UNKNOWN = "unknown"
_GONE_AFTER_ROUNDS = 2


@dataclass
class _Device:
    """What the state remembers of a drive; `missed` counts the rounds that ended without a session, in a row."""

    up: bool = False
    was_up: bool = False
    chosen: bool = True
    missed: int = 0
    facts: DeviceFacts | None = None

    @property
    def gone(self) -> bool:
        return not self.up and self.missed >= _GONE_AFTER_ROUNDS


@dataclass
class _Progress:
    """How far the run is; `step`: the last of the round under way, `charged`: to whom the last round charged energy."""

    booting: bool = False
    begun: bool = False
    resting: bool = False
    ended: bool = False
    charged: Collection[str] = field(default_factory=tuple)
    step: StepRecord | None = None


class MetricsState(RunListener):
    """All metrics of one run. Each method is one step for a scrape: it sees all of it or nothing."""

    def __init__(self, run: RunFacts, calibrated: Calibrated | None = None) -> None:
        """Begin with drives that are merely defined; `calibrated` knows what rounds should cost."""
        self._run, self._store, self._lock = run, Store(), threading.Lock()
        self._devices = {device: _Device() for device in run.devices}
        self._progress = _Progress()
        self._calibrated = calibrated or Calibrated()
        self._start: RunStart | None = None
        self._sums = RunStats()
        self.revision = 0
        self._store.update(
            {
                (names.BUILD_INFO, (metadata.version("csd-emu"), platform.python_version())): 1,
                (names.RUN_INFO, (run.array, run.engine, run.model, run.mode)): 1,
                (names.SERVER_INFO, (run.server or run.array,)): 1,
            }
        )
        self._store.begin(
            *((names.REJOINS, (device,)) for device in run.devices),
            *((names.ERRORS, (device, kind)) for device in run.devices for kind in _ERRORS.values()),
        )
        self._show_states()

    def start_booting(self) -> None:
        """Note that the drives are being started."""
        with self._lock:
            self._progress.booting = True
            self._show_states()

    def begin(self, start: RunStart) -> None:
        """Begin to train on drives that have a session: all counters are there, at 0 or where past rounds left them."""
        with self._lock:
            self._start = start
            self._describe(start)
            self._store.update(
                {(names.BOOT_SECONDS, (name, WALL)): seconds for name, seconds in start.boot_seconds.items()}
            )
            self._progress.begun = True
            begin_array(self._store, self._run.mode, start.clock, self._run.power_cap_watts)
            if self._run.servers:
                begin_servers(self._store, self._run.servers, start.clock)
            for device in self._devices.values():
                device.missed = 0 if device.up else _GONE_AFTER_ROUNDS
            self._show_states()
            self.revision += 1

    def add_event(self, event: EventRecord, listed: bool = True) -> None:
        """Note what happened to a device: here all events count, `listed` or not."""
        with self._lock:
            if self._progress.ended:
                return
            known = self._devices.get(event.device)
            if event.what in _ERRORS:
                self._store.add(names.ERRORS, (event.device if known else _UNKNOWN, _ERRORS[event.what]), 1)
            if known is None:
                return
            match event.what:
                case EventKind.REJECTED:
                    self._store.add(names.REJECTED, (event.device, reason_of(event.detail)), 1)
                case EventKind.JOINED | EventKind.REJOINED:
                    known.up, known.was_up, known.missed = True, True, 0
                    self._store.add(names.REJOINS, (event.device,), float(event.what == EventKind.REJOINED))
                case EventKind.LEFT:
                    known.up = False
                    if self._progress.resting:
                        known.missed = _GONE_AFTER_ROUNDS
                # Of a drive that dialled again the loss of its old session may be told last: the new one counts.
                case EventKind.LOST if not known.up:
                    known.was_up = True
            self._show_state(event.device, known)

    def add_step(self, record: StepRecord, end_seconds: float, clocks: Mapping[str, str]) -> None:
        """Count a step as soon as it has ended; what devices did in it comes with its round."""
        with self._lock:
            add_step(self._store, self._run.mode, record, self._progress.step, clocks)
            if record.servers is not None:
                show_servers(self._store, record.servers)
            self._progress.step = record

    def add_retune(self, record: RetuneRecord) -> None:
        """Count new batch sizes."""
        with self._lock:
            add_retune(self._store, record)

    def add_round(self, record: RoundRecord) -> None:
        """Count what the array did in a round."""
        with self._lock:
            if self._start is not None:
                self._describe(self._start)
            add_round(self._store, self._run.mode, record, self._calibrated)
            self._sums.add(record)
            show_bands(self._store, self._sums, record.clock)
            # Shares of a round's seconds are asked for: these counters move with those of the round.
            for servers in (step.servers for step in record.steps if step.servers is not None):
                add_servers(self._store, servers, record.clock if self._start is None else self._start.clock)
            self._progress.charged, self._progress.step = record.node_watts.keys(), None
            for name, device in self._devices.items():
                device.missed = 0 if device.up else device.missed + 1
                device.chosen = name not in record.idle
            self._show_states()
            self.revision += 1

    def end(self, stays: bool = False) -> None:
        """Keep everything as it is: that drives are switched off now is no fault of theirs.

        Of a run that `stays` they are still watched: a drive that leaves now is gone at once.
        """
        with self._lock:
            self._progress.resting, self._progress.ended, self._progress.begun = True, not stays, False
            self._show_states()
            self.revision += not stays

    def devices(self) -> dict[str, tuple[str, DeviceFacts | None]]:
        """Return for each drive the state that it is in, and what is known of it, if anything yet."""
        with self._lock:
            return {name: (self._state_of(device), device.facts) for name, device in self._devices.items()}

    def render(self, open_metrics: bool) -> tuple[int, str]:
        """Return the version, and the text of all series that are served at this moment, in one of two formats."""
        with self._lock:
            gone = frozenset(name for name, device in self._devices.items() if device.gone)
            uncharged = gone.difference(self._progress.charged)
            texts = [(metric, self._store.text(metric, _hidden(metric, gone, uncharged))) for metric in names.METRICS]
            version = self._store.version
        parts = []
        for metric, lines in texts:
            parts += [_head(metric, open_metrics), lines] if lines else []
            if lines and (old := names.OLD_NAMES.get(metric)) is not None:
                parts += [_head(old, open_metrics), lines.replace(metric.name, old.name)]
        return version, "".join([*parts, "# EOF\n"] if open_metrics else parts)

    @property
    def version(self) -> int:
        """It is another one after every change."""
        with self._lock:
            return self._store.version

    def _show_states(self) -> None:
        for name, device in self._devices.items():
            self._show_state(name, device)

    def _show_state(self, name: str, device: _Device) -> None:
        now = self._state_of(device)
        self._store.update(
            {
                (names.DEVICE_UP, (name,)): device.up,
                **{(names.DEVICE_STATE, (name, state)): state == now for state in STATES},
            }
        )

    def _state_of(self, device: _Device) -> str:
        if device.up:
            return TRAINING if self._progress.begun and device.chosen else READY
        if device.was_up or self._progress.begun:
            return LOST
        return BOOTING if self._progress.booting else DEFINED

    def _describe(self, start: RunStart) -> None:
        """Take what drives with a session said of themselves; the counters of a new one begin at 0."""
        for facts in start.list_devices():
            if (known := self._devices[facts.device]).facts != facts:
                known.facts = facts
                begin_device(self._store, self._run.mode, facts, start.clock)


def _head(metric: Metric, open_metrics: bool) -> str:
    name = metric.name.removesuffix("_total") if open_metrics else metric.name
    unit = f"# UNIT {name} {metric.unit}\n" if open_metrics and metric.unit else ""
    return f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n{unit}"


def _hidden(metric: Metric, gone: frozenset[str], uncharged: frozenset[str]) -> frozenset[str]:
    """Return of which devices the metric's series are not served: of those that are `gone`, or at least `uncharged`."""
    if metric.outlives or "device" not in metric.labels:
        return frozenset()
    return uncharged if metric.hardware else gone

"""History of a run so far, in bounded memory: fed with its records and events, read by the page."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from csd_emu.util.node_names import HOST
from host.core.failures import Failure
from host.core.records import EventRecord, RetuneRecord, RoundRecord, StepRecord
from host.core.run_stats import RunStats
from host.monitoring.page.curve import Point
from host.monitoring.page.drive_history import DriveLog, add_round, add_step
from host.monitoring.page.page_state import FINISHED, STARTING, TRAINING, EventNow, Phase, RoundNow, RunSoFar
from host.monitoring.page.run_curves import RunCurves
from host.monitoring.run_listener import RunListener, RunStart

MOST_EVENTS, MOST_ROUNDS = 200, 40
# Rounds whose spans are kept for the timeline.
_TIMELINE_ROUNDS = 3


@dataclass(frozen=True)
class RunPlan:
    """What is known of a run before it begins; `devices` are all that train, the host included."""

    array: str
    engine: str
    model: str
    mode: str
    devices: tuple[str, ...]
    rounds: int
    target_accuracy: float | None


@dataclass(frozen=True)
class HistorySnapshot:
    """A history at one moment; nothing in it changes any more."""

    revision: int
    phase: Phase
    clock: str
    run_directory: str
    changed_unix_seconds: float
    totals: RunSoFar
    stats: RunStats
    drives: Mapping[str, DriveLog]
    events: Sequence[EventNow]
    rounds: Sequence[RoundNow]
    curves: Mapping[str, Sequence[Point]]
    last: Sequence[RoundRecord]
    failures: Sequence[Failure] = ()


@dataclass
class _Standing:
    """Where a run stands: its phase and clock, the last step that ended, and when anything last changed."""

    changed_unix_seconds: float
    phase: Phase = STARTING
    clock: str = ""
    run_directory: str = ""
    step: int = 0
    revision: int = 0


class History(RunListener):
    """The history of one run. Each method is one step for a reader: it sees all of it or nothing."""

    def __init__(self, plan: RunPlan, calendar: Callable[[], float] = time.time) -> None:
        """Begin with drives that have done nothing; `calendar` returns Unix seconds."""
        self.plan, self._calendar, self._lock = plan, calendar, threading.Lock()
        self._now = _Standing(calendar())
        self._stats, self._curves = RunStats(), RunCurves()
        self._drives = {device: DriveLog() for device in plan.devices}
        self._events: deque[EventNow] = deque(maxlen=MOST_EVENTS)
        self._rounds: deque[RoundNow] = deque(maxlen=MOST_ROUNDS)
        self._last: deque[RoundRecord] = deque(maxlen=_TIMELINE_ROUNDS)
        # In force from a step on that has not ended yet.
        self._retunes: list[RetuneRecord] = []
        self._failures: list[Failure] = []

    @property
    def revision(self) -> int:
        """A number that grows with every change."""
        return self._now.revision

    @property
    def phase(self) -> Phase:
        """How far the run is."""
        return self._now.phase

    def begin(self, start: RunStart) -> None:
        """Note that training begins."""
        with self._lock:
            self._now.phase, self._now.clock, self._now.run_directory = TRAINING, start.clock, start.run_directory
            self._change()

    def end(self, stays: bool = False) -> None:
        """Note that training is done; events may still come."""
        with self._lock:
            self._now.phase = FINISHED
            self._change()

    def add_event(self, event: EventRecord, listed: bool = True) -> None:
        """Take an event that is to be listed."""
        if not listed:
            return
        with self._lock:
            self._events.append(
                EventNow(
                    number=self._events[-1].number + 1 if self._events else 1,
                    device=event.device,
                    what=str(event.what),
                    detail=event.detail,
                    wall_seconds=event.wall_seconds,
                    array_seconds=event.array_seconds,
                )
            )
            self._change()

    def set_failures(self, failures: Sequence[Failure]) -> None:
        """Take the failures of the user's code so far."""
        with self._lock:
            self._failures = list(failures)
            self._change()

    def add_retune(self, record: RetuneRecord) -> None:
        """Take new batch sizes, which are shown from the first step on that has them."""
        with self._lock:
            self._retunes.append(record)

    def add_step(self, record: StepRecord, end_seconds: float, clocks: Mapping[str, str]) -> None:
        """Take a synchronous step that has ended."""
        with self._lock:
            known = self._curves.batches
            batches = {part.device: part.batch_size for part in record.devices if part.device not in known}
            self._set_batches(end_seconds - record.array_seconds, batches, record.step)
            self._curves.add_step(record, end_seconds)
            add_step(self._drives, record)
            self._now.step = record.step
            self._change()

    def add_round(self, record: RoundRecord) -> None:
        """Take a round, of this process or of one that it resumes, whose steps were taken."""
        with self._lock:
            self._stats.add(record)
            self._rounds.append(describe_round(record))
            self._last.append(record)
            self._curves.add_round(record)
            add_round(self._drives, record)
            if record.steps:
                self._set_batches(record.start_seconds + record.array_seconds, {}, math.inf)
            else:
                for part in (part for part in record.devices if part.device in self._drives):
                    self._drives[part.device].set_batch(record.start_seconds, part.batch_size)
            self._change()

    def snapshot(self) -> HistorySnapshot:
        """Return the history as it is."""
        with self._lock:
            last = self._stats.last
            return HistorySnapshot(
                revision=self._now.revision,
                phase=self._now.phase,
                clock=self._now.clock or (last.clock if last is not None else ""),
                run_directory=self._now.run_directory,
                changed_unix_seconds=self._now.changed_unix_seconds,
                totals=_totals(self._stats, self._now.step, self._rounds),
                stats=self._stats.copy(),
                drives={name: replace(log) for name, log in self._drives.items()},
                events=list(self._events),
                rounds=list(self._rounds),
                curves=self._curves.points(),
                last=list(self._last),
                failures=self._failures,
            )

    def _change(self) -> None:
        self._now.revision += 1
        self._now.changed_unix_seconds = self._calendar()

    def _set_batches(self, now_seconds: float, batches: Mapping[str, int], step: float) -> None:
        """Show `batches`, and those of all retunes up to a step, from this moment of the array's time on."""
        batches = dict(batches)
        for retune in [each for each in self._retunes if each.step <= step]:
            batches |= retune.after
            self._retunes.remove(retune)
        if batches:
            self._curves.set_batches(now_seconds, batches)
        for device, batch in batches.items():
            if device in self._drives:
                self._drives[device].set_batch(now_seconds, batch)


def describe_round(record: RoundRecord) -> RoundNow:
    """Return a round as a row of a table; `batch_size` is the middle one of its drives."""
    batches = [part.batch_size for part in record.devices if part.device != HOST]
    return RoundNow(
        round=record.round,
        accuracy=finite(record.accuracy),
        test_loss=finite(record.test_loss),
        train_loss=finite(record.train_loss),
        drives=sum(part.device != HOST for part in record.in_time),
        records_per_device_second=finite(record.records_per_device_second),
        records_per_array_second=_over(record.samples, record.array_seconds),
        watts=_over(record.total_joules, record.array_seconds),
        joules=record.total_joules,
        batch_size=statistics.median_low(batches) if batches else None,
        array_seconds=record.array_seconds,
        wall_seconds=record.wall_seconds,
    )


def finite(value: float) -> float | None:
    """Return `value`, or None if it is no finite number."""
    return value if math.isfinite(value) else None


def _totals(stats: RunStats, step: int, rounds: Sequence[RoundNow]) -> RunSoFar:
    """Return the run so far, of which the last of `rounds` is the row of the last round."""
    if stats.last is None:
        return RunSoFar(steps=step)
    row = rounds[-1]
    return RunSoFar(
        round=row.round,
        steps=step,
        accuracy=row.accuracy,
        test_loss=row.test_loss,
        train_loss=row.train_loss,
        records=stats.samples,
        records_per_device_second=row.records_per_device_second,
        records_per_array_second=row.records_per_array_second,
        array_seconds=stats.array_seconds,
        wall_seconds=stats.wall_seconds,
        last_array_seconds=row.array_seconds,
        last_wall_seconds=row.wall_seconds,
        watts=row.watts,
        joules=stats.energy_joules,
        machine_joules=stats.machine_joules,
    )


def _over(above: float, below: float) -> float | None:
    return above / below if below > 0 else None

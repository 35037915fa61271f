"""History of a run so far, in bounded memory: fed with its records and events, read by the page."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from csd_emu.util.node_names import HOST
from host.core.failures import Failure
from host.core.records import EventRecord, RoundRecord
from host.monitoring.page.curve import Point, ThinnedCurve
from host.monitoring.page.drive_history import DriveLog, add_round
from host.monitoring.page.page_state import FINISHED, STARTING, TRAINING, EventNow, Phase, RoundNow, RunSoFar

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
    drives: Mapping[str, DriveLog]
    events: Sequence[EventNow]
    rounds: Sequence[RoundNow]
    curves: Mapping[str, Sequence[Point]]
    last: Sequence[RoundRecord]
    failures: Sequence[Failure] = ()


class History:
    """The history of one run. Each method is one step for a reader: it sees all of it or nothing."""

    def __init__(self, plan: RunPlan, calendar: Callable[[], float] = time.time) -> None:
        """Begin with drives that have done nothing; `calendar` returns Unix seconds."""
        self.plan, self._calendar, self._lock = plan, calendar, threading.Lock()
        self._revision, self._changed = 0, calendar()
        self._phase: Phase = STARTING
        self._clock, self._directory = "", ""
        self._totals = RunSoFar()
        self._drives = {device: DriveLog() for device in plan.devices}
        self._events: deque[EventNow] = deque(maxlen=MOST_EVENTS)
        self._rounds: deque[RoundNow] = deque(maxlen=MOST_ROUNDS)
        self._last: deque[RoundRecord] = deque(maxlen=_TIMELINE_ROUNDS)
        self._curves: defaultdict[str, ThinnedCurve] = defaultdict(ThinnedCurve)
        self._batches: dict[str, int] = {}
        self._count = 0
        self._failures: list[Failure] = []

    @property
    def revision(self) -> int:
        """A number that grows with every change."""
        return self._revision

    @property
    def phase(self) -> Phase:
        """How far the run is."""
        return self._phase

    def begin(self, clock: str, run_directory: str) -> None:
        """Note that training begins; `clock` is that of the array's seconds."""
        with self._lock:
            self._phase, self._clock, self._directory = TRAINING, clock, run_directory
            self._change()

    def end(self) -> None:
        """Note that training is done; events may still come."""
        with self._lock:
            self._phase = FINISHED
            self._change()

    def add_event(self, event: EventRecord) -> None:
        """Take an event."""
        with self._lock:
            self._count += 1
            self._events.append(
                EventNow(
                    number=self._count,
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

    def count_event(self, event: EventRecord) -> None:
        """Leave out an event that is not to be listed."""

    def add_round(self, record: RoundRecord) -> None:
        """Take a round, of this process or of one that it resumes."""
        with self._lock:
            row = describe_round(record)
            self._totals = _add(self._totals, record, row)
            add_round(self._drives, record)
            self._rounds.append(row)
            self._last.append(record)
            self._draw(record, row)
            self._change()

    def snapshot(self) -> HistorySnapshot:
        """Return the history as it is."""
        with self._lock:
            return HistorySnapshot(
                revision=self._revision,
                phase=self._phase,
                clock=self._clock or (self._last[-1].clock if self._last else ""),
                run_directory=self._directory,
                changed_unix_seconds=self._changed,
                totals=self._totals,
                drives={name: replace(log) for name, log in self._drives.items()},
                events=list(self._events),
                rounds=list(self._rounds),
                curves={name: curve.points() for name, curve in self._curves.items()},
                last=list(self._last),
                failures=self._failures,
            )

    def _change(self) -> None:
        self._revision += 1
        self._changed = self._calendar()

    def _draw(self, record: RoundRecord, row: RoundNow) -> None:
        end, drives, host = record.start_seconds + record.array_seconds, *_watts(record)
        values = {
            "accuracy": record.accuracy,
            "test_loss": record.test_loss,
            "train_loss": record.train_loss,
            "device_rate": record.records_per_device_second,
            "drive_watts": drives,
            "host_watts": host,
            "wall_per_array_second": _over(record.wall_seconds, record.array_seconds),
        }
        if not record.steps:
            values["array_rate"] = row.records_per_array_second
            self._draw_batches(record.start_seconds, [part.batch_size for part in record.devices])
        for name, value in values.items():
            self._curves[name].add(end, math.nan if value is None else value)
        self._draw_steps(record)

    def _draw_steps(self, record: RoundRecord) -> None:
        """Draw each step's rate, and batches where they change: an epoch's last step is smaller than these."""
        now = record.start_seconds
        for step in record.steps:
            batches = {} if self._batches else {part.device: part.batch_size for part in step.devices}
            for retune in record.retunes:
                batches |= retune.after if retune.step == step.step else {}
            if batches:
                self._batches |= batches
                self._draw_batches(now, [batch for device, batch in self._batches.items() if device != HOST])
            now += step.array_seconds
            self._curves["array_rate"].add(now, _over(step.samples, step.array_seconds) or math.nan)
        self._draw_batches(now, [batch for device, batch in self._batches.items() if device != HOST])

    def _draw_batches(self, now_seconds: float, batches: Collection[int]) -> None:
        if batches:
            for name, value in (("low", min), ("median", statistics.median_low), ("high", max)):
                self._curves[f"batch_{name}"].add(now_seconds, float(value(batches)))


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


def _add(totals: RunSoFar, record: RoundRecord, row: RoundNow) -> RunSoFar:
    joules = [value for value in (totals.machine_joules, record.machine_joules) if value is not None]
    return msgspec.structs.replace(
        totals,
        round=record.round,
        steps=record.steps[-1].step if record.steps else totals.steps,
        accuracy=row.accuracy,
        test_loss=row.test_loss,
        train_loss=row.train_loss,
        records=totals.records + record.samples,
        records_per_device_second=row.records_per_device_second,
        records_per_array_second=row.records_per_array_second,
        array_seconds=totals.array_seconds + record.array_seconds,
        wall_seconds=totals.wall_seconds + record.wall_seconds,
        last_array_seconds=record.array_seconds,
        last_wall_seconds=record.wall_seconds,
        watts=row.watts,
        joules=totals.joules + row.joules,
        machine_joules=math.fsum(joules) if joules else None,
    )


def _over(above: float, below: float) -> float | None:
    return above / below if below > 0 else None


def _watts(record: RoundRecord) -> tuple[float, float]:
    """Return the mean watts of all drives, and of host and chassis."""
    joules = {True: 0.0, False: 0.0}
    for node, parts in record.node_joules.items():
        joules[node == HOST] += math.fsum(parts.values())
    return _over(joules[False], record.array_seconds) or 0.0, _over(joules[True], record.array_seconds) or 0.0

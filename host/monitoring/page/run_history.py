"""History of a run so far, in bounded memory: fed with its records and events, read by the page."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from host.core.failures import Failure
from host.core.figure_bands import watts_band
from host.core.records import EventRecord, RetuneRecord, RoundRecord, StepRecord
from host.core.run_stats import DeviceStats, RunStats
from host.monitoring.charts.chart import Point, shorten_number
from host.monitoring.charts.run_curves import RunCurves
from host.monitoring.page import page_view as view
from host.monitoring.page.page_state import (
    FINISHED,
    STARTING,
    TRAINING,
    VERSION,
    DriveNow,
    EventNow,
    PageState,
    Phase,
    RoundNow,
    RunNow,
)
from host.monitoring.run_facts import DeviceFacts, RunFacts
from host.monitoring.run_listener import RunListener, RunStart

MOST_EVENTS, MOST_ROUNDS, MOST_CHANGES = 200, 40, 64
# Rounds whose spans are kept for the timeline.
_TIMELINE_ROUNDS = 3

Presences = Mapping[str, tuple[str, DeviceFacts | None]]
"""Device -> its state, and what is known of it; see `MetricsState.devices`."""


@dataclass
class _Standing:
    """Where a run stands: its phase and clock, the last step that ended, and when anything last changed."""

    changed_unix_seconds: float
    phase: Phase = STARTING
    clock: str = ""
    run_directory: str = ""
    step: StepRecord | None = None
    revision: int = 0
    failures: list[Failure] = field(default_factory=list)


class History(RunListener):
    """The history of one run. Each method is one step for a reader: it sees all of it or nothing."""

    def __init__(self, run: RunFacts, calendar: Callable[[], float] = time.time) -> None:
        """Begin with drives that have done nothing; `calendar` returns Unix seconds."""
        self._run, self._calendar, self._lock = run, calendar, threading.Lock()
        self._now = _Standing(calendar())
        self._stats, self._curves = RunStats(), RunCurves()
        # (array seconds, batch) wherever a drive's batch changed; observed over expected seconds of its last step.
        self._batches: dict[str, list[Point]] = {device: [] for device in run.devices}
        self._slowdowns: dict[str, float | None] = {}
        self._events: deque[EventNow] = deque(maxlen=MOST_EVENTS)
        self._rounds: deque[RoundNow] = deque(maxlen=MOST_ROUNDS)
        self._last: deque[RoundRecord] = deque(maxlen=_TIMELINE_ROUNDS)
        # In force from a step on that has not ended yet.
        self._retunes: list[RetuneRecord] = []

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
        if listed:
            with self._lock:
                number = self._events[-1].number + 1 if self._events else 1
                self._events.append(EventNow(number=number, **msgspec.structs.asdict(event)))
                self._change()

    def set_failures(self, failures: Sequence[Failure]) -> None:
        """Take the failures of the user's code so far."""
        with self._lock:
            self._now.failures = list(failures)
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
            self._retune(end_seconds - record.array_seconds, batches, record.step)
            self._curves.add_step(record, end_seconds)
            self._slowdowns |= {part.device: part.slowdown for part in record.devices}
            self._now.step = record
            self._change()

    def add_round(self, record: RoundRecord) -> None:
        """Take a round, of this process or of one that it resumes, whose steps were taken."""
        with self._lock:
            self._stats.add(record)
            self._rounds.append(view.describe_round(record))
            self._last.append(record)
            self._curves.add_round(record)
            stepped = {part.device for step in record.steps for part in step.devices}
            self._slowdowns = {name: each for name, each in self._slowdowns.items() if name in stepped}
            if record.steps:
                self._retune(record.end_seconds, {}, math.inf)
            else:
                self._set_batches(record.start_seconds, {part.device: part.batch_size for part in record.devices})
            self._change()

    def state(self, presences: Presences, instance: str, program: str) -> PageState:
        """Return all that the page shows; `program` is the version of csd-emu, `instance` is of the host's process."""
        with self._lock:
            now, last = self._now, self._stats.last
            clock = now.clock or (last.clock if last is not None else "")
            curves = self._curves.points()
            batches, hidden = view.choose_batches(self._batches, self._stats.array_seconds)
            return PageState(
                version=VERSION,
                instance=instance,
                revision=now.revision,
                run=self._run_now(clock, program),
                totals=view.sum_up(self._stats, now.step, self._rounds[-1] if self._rounds else None),
                states=count_states(presences),
                drives=list(self._drives(presences)),
                failures=now.failures,
                events=list(reversed(self._events)),
                rounds=list(reversed(self._rounds)),
                series={name: view.make_series(name, points) for name, points in curves.items()},
                batches={name: view.make_series(name, points) for name, points in batches.items()},
                hidden_batches=hidden,
                timeline=view.show_timeline(list(self._last), self._run.devices, self._slowdowns),
                charts=view.make_charts(curves, batches, hidden, clock, self._run.target_accuracy),
            )

    def _run_now(self, clock: str, program: str) -> RunNow:
        run, now = self._run, self._now
        return RunNow(
            array=run.array,
            engine=run.engine,
            model=run.model,
            mode=run.mode,
            phase=now.phase,
            clock=clock,
            rounds=run.rounds,
            target_accuracy=run.target_accuracy,
            run_directory=now.run_directory,
            program=program,
            changed_unix_seconds=now.changed_unix_seconds,
        )

    def _drives(self, presences: Presences) -> Iterator[DriveNow]:
        """Yield each drive with its sums, and with its rate and power in the last round."""
        last, stats = self._stats.last, self._stats
        parts = {} if last is None else {part.device: part for part in last.devices}
        rates = {} if last is None else {part.device: part.records_per_device_second for part in last.in_time}
        watts = {} if last is None else last.node_watts
        for name, (state, facts) in presences.items():
            sums, batches = stats.devices.get(name, DeviceStats()), self._batches.get(name)
            drawn = None if last is None else last.device_bands.get(name, {}).get("energy_joules")
            power = watts_band(watts.get(name) or 0.0, drawn, None if last is None else last.bands.get("array_seconds"))
            yield DriveNow(
                name=name,
                kind=facts.kind if facts is not None else "",
                profile=facts.profile if facts is not None else "",
                state=state,
                clock="+".join(sorted(sums.clocks)) or (facts.clock if facts is not None else ""),
                rounds=sums.rounds - sums.stragglers,
                records=sums.samples,
                records_per_device_second=shorten_number(rates.get(name)),
                compute_seconds=shorten_number(stats.device_seconds.get(name)) or 0.0,
                batch_size=int(batches[-1][1]) if batches else None,
                watts=shorten_number(watts.get(name)),
                joules=shorten_number(math.fsum(stats.node_joules.get(name, {}).values())) or 0.0,
                slowdown=shorten_number(self._slowdowns.get(name)),
                straggler=name in parts and parts[name].straggler,
                host_io=view.describe_service(parts[name].service if name in parts else None),
                bands=stats.device_bands.get(name, {}) | ({} if power is None else {"watts": power}),
            )

    def _change(self) -> None:
        self._now.revision += 1
        self._now.changed_unix_seconds = self._calendar()

    def _retune(self, now_seconds: float, batches: Mapping[str, int], step: float) -> None:
        """Show `batches`, and those of all retunes up to a step, from this moment of the array's time on."""
        due = [each for each in self._retunes if each.step <= step]
        self._retunes = [each for each in self._retunes if each.step > step]
        for retune in due:
            batches = {**batches, **retune.after}
        if batches:
            self._curves.set_batches(now_seconds, batches)
            self._set_batches(now_seconds, batches)

    def _set_batches(self, now_seconds: float, batches: Mapping[str, int]) -> None:
        for device in batches.keys() & self._batches.keys():
            if not (known := self._batches[device]) or known[-1][1] != batches[device]:
                self._batches[device] = [*known[1 - MOST_CHANGES :], (now_seconds, float(batches[device]))]


def count_states(presences: Presences) -> dict[str, int]:
    """Return how many drives are in each state."""
    return dict(Counter(state for state, _ in presences.values()))

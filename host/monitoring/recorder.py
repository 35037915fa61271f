"""Recorder of a run: what happens goes to its directory, to its checkpoint, to Prometheus and to the live page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import shorten
from host.core.console import tell
from host.core.event_budget import EventBudget
from host.core.failures import Failure, FailureRecord
from host.core.records import EventKind, EventRecord, RetuneRecord, RoundRecord, StepRecord
from host.core.slice_record import SliceRecord
from host.core.states.training_state import TrainingState
from host.fleet.checkpoint import Checkpoint
from host.monitoring.run_directory import RunDirectory
from host.monitoring.run_listener import RunListener, RunStart, show_round
from host.training.accounting import Accountant
from host.training.training_protocol import Training

# Of what is written down of a drive's event.
_MOST_CHARACTERS = 4000


@dataclass(frozen=True)
class ResumePoint:
    """What a resumed run goes on from.

    Attributes:
        directory: open, with nothing in its records behind the last round.
        last_round: number of the last that is done; 0 if none is.
        checkpoint: after the last of them; None if the run ended before its first checkpoint.
        failures: of the user's code, in these rounds.
    """

    directory: RunDirectory
    last_round: int = 0
    checkpoint: Checkpoint | None = None
    failures: Sequence[Failure] = ()

    @property
    def state(self) -> TrainingState | None:
        """Where the training stood."""
        return self.checkpoint.state if self.checkpoint is not None else None


class Recorder:
    """Records one run, from its beginning or from its `past` on. Events that come before there is a directory wait.

    Attributes:
        last_round: number of the last that has ended; 0 before the first.
        listeners: shown what happens from now on.
        directory: None until `open`.
    """

    def __init__(self, listeners: Sequence[RunListener], job: str, every: int, past: ResumePoint | None) -> None:
        """Begin the run's wall time.

        Args:
            listeners: shown everything; of a resumed run its past rounds first.
            job: hash of the job, for checkpoints.
            every: rounds between checkpoints; 0 for none.
            past: of a resumed run.
        """
        self.last_round = past.last_round if past is not None else 0
        self.listeners, self._job, self._every = list(listeners), job, every
        spent_seconds = past.checkpoint.wall_seconds if past is not None and past.checkpoint is not None else 0.0
        self._begin = time.monotonic() - spent_seconds
        self._early: list[EventRecord] = []
        self._budget = EventBudget()
        self.directory: RunDirectory | None = None
        self._accountant: Accountant | None = None
        self._start: RunStart | None = None
        self._clocks: dict[str, str] = {}
        # Of the round under way: how many steps and retunes were shown.
        self._shown = [0, 0]
        if past is not None:
            for record in past.directory.read_rounds():  # so that counters go on where they were
                show_round(self.listeners, record)
            self.open(past.directory)
            self.add_event(HOST, EventKind.RESUMED, f"after round {self.last_round}")

    @property
    def wall_seconds(self) -> float:
        """Wall time of the run, that of the parts before it was resumed included."""
        return time.monotonic() - self._begin

    def open(self, directory: RunDirectory) -> None:
        """Record into `directory` from now on, the events that have waited first."""
        self.directory = directory
        tell(run=directory.path.name)
        for event in self._early:
            directory.append(event)
        self._early.clear()

    def _show(self, what: Callable[[RunListener], None]) -> None:
        for listener in self.listeners:
            what(listener)

    def start_booting(self) -> None:
        """Note that the devices are being started."""
        self._show(lambda listener: listener.start_booting())

    def begin(self, start: RunStart, accountant: Accountant) -> None:
        """Note that training begins; from now on events have the array time of `accountant`."""
        self._start, self._accountant = start, accountant
        self._read_clocks(start)
        self._show(lambda listener: listener.begin(start))

    def _read_clocks(self, start: RunStart) -> None:
        self._clocks |= {facts.device: facts.clock for facts in start.list_devices()}

    def end(self, stays: bool = False) -> None:
        """Note that training is done, or, where it `stays`, that the run is over later."""
        self._show(lambda listener: listener.end(stays))

    def add_step(self, record: StepRecord, end_seconds: float) -> None:
        """Show a synchronous step that has ended at this moment of the array's time; its round's record has it too."""
        self._shown[0] += 1
        self._show(lambda listener: listener.add_step(record, end_seconds, self._clocks))

    def add_retune(self, record: RetuneRecord) -> None:
        """Show new batch sizes; the round's record has them too."""
        self._shown[1] += 1
        self._show(lambda listener: listener.add_retune(record))

    def add_event(self, device: str, what: EventKind, detail: str) -> None:
        """Record an event; once the directory is closed, for the listeners alone.

        Of a drive's events of one kind the first in each minute are listed and the others counted: a drive that does
        not cease fills neither disk nor page. The host's own are all listed.
        """
        self.list_counted(at_once=False)
        if device == HOST:
            self._list(device, what, detail)
        elif self._budget.admits(device, what):
            self._list(device, what, shorten(detail, _MOST_CHARACTERS))
        else:
            self._show_event(self._event(device, what, detail), listed=False)

    def list_counted(self, at_once: bool = True) -> None:
        """Write down how many events were only counted in the minute that is over, or `at_once` in this one."""
        for (device, what), count in self._budget.take_counted(at_once).items():
            self._list(device, EventKind.NOTE, f"{what}: and {count:,} more in this minute")

    def _list(self, device: str, what: EventKind, detail: str) -> None:
        event = self._event(device, what, detail)
        self._show_event(event)
        if self.directory is None:
            self._early.append(event)
        elif not self.directory.closed:
            self.directory.append(event)

    def _show_event(self, event: EventRecord, listed: bool = True) -> None:
        self._show(lambda listener: listener.add_event(event, listed))

    def set_failures(self, failures: Sequence[Failure]) -> None:
        """Show all failures of the user's code so far."""
        self._show(lambda listener: listener.set_failures(failures))

    def add_failure(self, failure: Failure) -> None:
        """Record a failure of the user's code that came for the first time."""
        record = FailureRecord(failure=failure, wall_seconds=self.wall_seconds, array_seconds=self._array_seconds)
        if self.directory is not None and not self.directory.closed:
            self.directory.append(record)

    @property
    def _array_seconds(self) -> float:
        return self._accountant.array_seconds if self._accountant is not None else 0.0

    def _event(self, device: str, what: EventKind, detail: str) -> EventRecord:
        return EventRecord(device, what, detail, self.wall_seconds, self._array_seconds)

    def add_slices(self, slices: Iterable[SliceRecord]) -> None:
        """Record what became of the slices of a device's step."""
        if self.directory is not None and not self.directory.closed:
            self.directory.append_slices(slices)

    async def add_round(self, record: RoundRecord, training: Training, last: bool = False) -> None:
        """Record a round, and write a checkpoint if one is due: the last round, of a run that is done, always has one.

        Raises:
            EnvironmentUnfit: the disk is full; the checkpoint before is intact.
        """
        if (directory := self.directory) is None:
            raise RuntimeError("a round was recorded before there was a run directory")
        self.list_counted(at_once=False)
        directory.append(record)
        self.last_round = record.round
        if self._start is not None:
            self._read_clocks(self._start)
        show_round(self.listeners, record, *self._shown)
        self._shown = [0, 0]
        if self._every and (record.round % self._every == 0 or training.done or last):
            await asyncio.to_thread(
                directory.save_checkpoint, Checkpoint(training.state(), self.wall_seconds), self._job
            )

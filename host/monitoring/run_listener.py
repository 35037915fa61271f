"""Listener of a run: what is shown steps, rounds and events as they happen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from host.core.failures import Failure
from host.core.records import EventRecord, RetuneRecord, RoundRecord, StepRecord
from host.monitoring.run_facts import DeviceFacts


@dataclass(frozen=True)
class RunStart:
    """What is known when training begins.

    Attributes:
        clock: of the array's seconds.
        run_directory: path of what the run writes into.
        list_devices: returns facts of the devices that have a session at the moment.
        boot_seconds: device -> wall seconds from its start to its hello, of those that were started.
    """

    clock: str
    run_directory: str = ""
    list_devices: Callable[[], Sequence[DeviceFacts]] = tuple
    boot_seconds: Mapping[str, float] = field(default_factory=dict)


class RunListener:
    """Base of all that follows a run. Methods do nothing unless they are overridden.

    Each step and each retune is shown once, before the round that it is of; a resumed run's past rounds are shown with
    their steps first of all, before training begins.
    """

    def start_booting(self) -> None:
        """Note that the devices are being started."""

    def begin(self, start: RunStart) -> None:
        """Note that training begins."""

    def add_step(self, record: StepRecord, end_seconds: float, clocks: Mapping[str, str]) -> None:
        """Take a synchronous step that has ended.

        Args:
            record: of the step.
            end_seconds: when it ended, in the array's composed time.
            clocks: device -> clock of its seconds.
        """

    def add_retune(self, record: RetuneRecord) -> None:
        """Take new batch sizes, before the first step that has them."""

    def add_round(self, record: RoundRecord) -> None:
        """Take a round that has ended, and whose steps and retunes were shown."""

    def add_event(self, event: EventRecord, listed: bool = True) -> None:
        """Take an event; one that is not `listed` is one too many of its kind in a minute, and only counted."""

    def set_failures(self, failures: Sequence[Failure]) -> None:
        """Take all failures of the user's code so far."""

    def end(self, stays: bool = False) -> None:
        """Note that training is done; devices that `stays` is said of go on to be watched, until `end` comes again."""


def show_round(listeners: Iterable[RunListener], record: RoundRecord, steps: int = 0, retunes: int = 0) -> None:
    """Show a round to all `listeners`, and before it its steps and retunes but for the first ones, shown already."""
    listeners = tuple(listeners)
    clocks = {part.device: part.clock for part in record.devices}
    end_seconds, left = record.start_seconds, record.retunes[retunes:]
    for number, step in enumerate(record.steps):
        end_seconds += step.array_seconds
        if number >= steps:
            due, left = [each for each in left if each.step <= step.step], [e for e in left if e.step > step.step]
            for listener in listeners:
                for retune in due:
                    listener.add_retune(retune)
                listener.add_step(step, end_seconds, clocks)
    for listener in listeners:
        for retune in left:
            listener.add_retune(retune)
        listener.add_round(record)

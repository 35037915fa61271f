"""Commands of one load or trace to a drive in service, from when it begins to when it ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.flash.flash_drive import FOREVER, commands_table
from csd_emu.perfmodel.flash.flash_queues import Columns, Integers, take
from csd_emu.perfmodel.host_load import HostLoad, LoadGenerator
from csd_emu.profiles.flash_geometry import SECOND, FlashParameters

NOT_BEGUN = -1
POLL_NS = 100_000
"""At multiples of which a host looks for commands of a queue depth that have ended, and has others follow: assumed."""


@dataclass(frozen=True)
class ScheduledLoad:
    """What a host asks of a drive, and when.

    Attributes:
        load: a load, or the commands of a trace in the order of their arrival, which counts from the begin.
        begin_seconds: of the array's time; the load begins then, or with `begin_step` if that is later.
        begin_step: the number of a step, or of a federated job's round, before which it does not begin.
        end_seconds: it ends then.
        end_step: it ends before this step; None for never.
    """

    load: HostLoad | Columns
    begin_seconds: float = 0.0
    begin_step: int = 0
    end_seconds: float = float("inf")
    end_step: int | None = None


class LoadSource:
    """The commands of one scheduled load, window after window.

    Attributes:
        scheduled: what and when.
        begin_ns, end_ns: of the array's time; `NOT_BEGUN` before the step with which it begins.
        taken: how many commands were taken.
        due_ns, flying: of a load with a queue depth, (n,) when its next commands begin, and (m,) numbers of those that
            are in the drive.
    """

    def __init__(self, scheduled: ScheduledLoad, flash: FlashParameters, namespace_pages: int) -> None:
        """Wait for the begin.

        Raises:
            ConfigurationError: the load is not one of this flash (see `LoadGenerator`).
        """
        self.scheduled = scheduled
        self.begin_ns, self.end_ns, self.taken = NOT_BEGUN, FOREVER, 0
        self.due_ns = self.flying = np.zeros(0, np.int64)
        load = scheduled.load
        self._generator = LoadGenerator(load, flash, namespace_pages) if isinstance(load, HostLoad) else None
        self.depth = load.queue_depth if isinstance(load, HostLoad) else 0
        self._pages = 0 if self._generator is None else self._generator.pages

    @property
    def next_look_ns(self) -> int:
        """When the host looks next for ends of a queue depth: behind those that have begun, or begin first; else never.

        It is a multiple of `POLL_NS`, perhaps one that has passed.
        """
        begins = self.due_ns[self.due_ns < self.end_ns]
        first = 0 if len(self.flying) else int(begins.min(initial=FOREVER))
        return (first // POLL_NS + 1) * POLL_NS

    def begin_step(self, number: int, now_ns: int) -> None:
        """Begin, or end, if this is the step to do so."""
        plan = self.scheduled
        if self.begin_ns == NOT_BEGUN and number >= plan.begin_step:
            self.begin_ns = max(now_ns, round(plan.begin_seconds * SECOND))
            self.due_ns = np.full(self.depth, self.begin_ns)
            self.end_ns = FOREVER if plan.end_seconds * SECOND >= FOREVER else round(plan.end_seconds * SECOND)
        if plan.end_step is not None and number >= plan.end_step:
            self.end_ns = min(self.end_ns, now_ns)

    def first_ns(self, until_ns: int) -> int:
        """Return when the next command arrives, at most `until_ns`."""
        arrivals = self.due_ns[self.due_ns < self.end_ns] if self.depth else self._look(until_ns)["arrival_ns"]
        return min(int(arrivals.min(initial=FOREVER)), until_ns)

    def count_pages(self, now_ns: int, until_ns: int) -> int:
        """Return the pages of commands that arrive until a time; of a queue depth, as many as so far in such a time."""
        if self.depth:
            active = self.taken and self.begin_ns < now_ns < self.end_ns
            return self.taken * self._pages * (until_ns - now_ns) // (now_ns - self.begin_ns) if active else 0
        return int(self._look(until_ns)["pages"].sum())

    def take_until(self, until_ns: int) -> Columns:
        """Return the commands that arrive before `until_ns` and were not taken yet, in the array's time."""
        if self.depth:
            assert self._generator is not None
            begins = self.due_ns < min(until_ns, self.end_ns)
            commands = self._generator.take_next(np.sort(self.due_ns[begins]))
            self.due_ns = self.due_ns[~begins]
        else:
            commands = self._look(until_ns)
            if self._generator is not None:
                self._generator.drop(len(commands["page"]))
        self.taken += len(commands["page"])
        return commands

    def _look(self, until_ns: int) -> Columns:
        own_ns = min(until_ns, self.end_ns) - self.begin_ns
        if self.begin_ns == NOT_BEGUN or own_ns <= 0:
            return commands_table()
        load = self.scheduled.load
        if self._generator is not None:
            commands = self._generator.look_until(own_ns)
        else:
            assert not isinstance(load, HostLoad)
            last = int(np.searchsorted(load["arrival_ns"], own_ns))
            commands = take(load, slice(self.taken, max(last, self.taken)))
        return commands | {"arrival_ns": commands["arrival_ns"] + self.begin_ns}

    def follow(self, ended: Columns) -> None:
        """Have commands of a queue depth follow those of it that ended."""
        own = np.isin(ended["number"], self.flying)
        self.flying = np.setdiff1d(self.flying, ended["number"][own])
        self.due_ns = np.concatenate([self.due_ns, (ended["finish_ns"][own] // POLL_NS + 1) * POLL_NS])

    def state(self) -> dict[str, Integers]:
        """Return all that changes, for `restore`."""
        numbers = np.array([self.begin_ns, self.end_ns, self.taken], np.int64)
        return {"numbers": numbers, "due_ns": self.due_ns, "flying": self.flying}

    def restore(self, state: dict[str, Integers]) -> None:
        """Go on from where a source of the same load was."""
        self.begin_ns, self.end_ns, self.taken = map(int, state["numbers"])
        self.due_ns, self.flying = state["due_ns"], state["flying"]
        if self._generator is not None:
            self._generator.drop(self.taken)

"""Participants of the next step: devices leave, come back, and are waited for if none is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from csd_emu.util.deadline import Deadline
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import CsdError, DeviceFailed, DeviceLost
from host.core.failures import Failures
from host.core.records import EventKind, OnEvent
from host.fleet.device_session import DeviceSession
from host.fleet.fleet import Fleet
from host.training.device_conduct import Conduct

# How often a host that waits for its devices to dial again looks whether they still exist.
_LOOK_SECONDS = 1.0
# A device whose task fails so many times in a row is left out of the run.
_FAILURES = 3


class Participants:
    """The sessions of a run's nodes, in participant order.

    Attributes:
        nodes: their names.
        conduct: knows who is set aside.
        on_event: called with device, what happened, and more about it.
        run_failures: of the user's code, which may end the run.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        fleet: Fleet,
        list_existing: Callable[[], Collection[str]],
        watchdog_seconds: float,
        on_event: OnEvent,
        failures: Failures | None = None,
    ) -> None:
        """Begin with nobody.

        Args:
            nodes: names of all nodes of the array, in order.
            fleet: those that have dialled in.
            list_existing: returns which devices exist and may dial again; it may block.
            watchdog_seconds: for so long devices are waited for when none is there.
            on_event: called with device, what happened, and more about it.
            failures: of the user's code, which may end the run.
        """
        self.run_failures = failures or Failures(goes_on=True)
        self.nodes, self._fleet, self._list_existing = list(nodes), fleet, list_existing
        self._watchdog_seconds, self.on_event = watchdog_seconds, on_event
        self.conduct = Conduct(on_event)
        self._failures: Counter[str] = Counter()
        self._out: set[str] = set()
        self._last: CsdError | None = None
        # How long devices are still waited for; None while one is there.
        self._patience: Deadline | None = None

    async def present(self, step: int) -> dict[str, DeviceSession]:
        """Return the sessions of those who can take part in a step, at least one, in participant order.

        Raises:
            DeviceLost: none is there, and none came back in time.
            DeviceFailed: those that are left cannot do their task.
        """
        while True:
            newcomer = self.newcomer
            if sessions := self.here():
                return sessions
            await self.wait(step, newcomer)

    async def wait(self, step: int, newcomer: asyncio.Event) -> None:
        """Wait for a while that a device dials again, when none is there.

        Args:
            step: that they are waited for.
            newcomer: `newcomer` as it was before it was found that none is there.

        Raises:
            DeviceLost, DeviceFailed: see `present`.
        """
        # Not those that dial in while the list is made: they are the newcomers.
        live = set(self._fleet.sessions())
        existing = set(await asyncio.to_thread(self._list_existing)) - self._out - live
        if not existing or (self._patience is not None and self._patience.expired):
            raise self._verdict(step)
        if self._patience is None:
            self._patience = Deadline(self._watchdog_seconds)
            names = ", ".join(sorted(existing))
            self.on_event(HOST, EventKind.NOTE, f"step {step}: waits up to {self._patience.seconds:.0f} s for {names}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(newcomer.wait(), min(_LOOK_SECONDS, self._patience.left_seconds))

    @property
    def newcomer(self) -> asyncio.Event:
        """Set when the next device dials in."""
        return self._fleet.newcomer

    def here(self) -> dict[str, DeviceSession]:
        """Return the sessions of those who can take part now, perhaps none, in participant order."""
        there = self.conduct.without_aside(self._fleet.sessions())
        return {node: there[node] for node in self.nodes if node in there and node not in self._out}

    def took_part(self, devices: Collection[str], failed: Mapping[str, CsdError]) -> None:
        """Note who returned its part of a step, and who did not, and why.

        Raises:
            UserCodeFailed: the user's code has failed somewhere, and the job says that the run ends then.
        """
        self.run_failures.check()
        self._patience = None
        for device in devices:
            del self._failures[device]
        for device, error in failed.items():
            self._last = error
            self._failures[device] += isinstance(error, DeviceFailed)
            if self._failures[device] >= _FAILURES:
                self._out.add(device)
                self.on_event(
                    device, EventKind.NOTE, f"left out from now on: its task failed {_FAILURES} times in a row"
                )

    def _verdict(self, step: int) -> CsdError:
        if isinstance(self._last, DeviceFailed):
            return self._last
        last = f" ({self._last})" if self._last is not None else ""
        return DeviceLost(f"step {step}: no device is left{last}; csd-emu status shows what is")

"""Faults that a run makes in its devices when `csd-emu inject` asks for them.

A device reads nothing while it trains, and its stream is strictly question and answer; so what its agent must do waits
until the device is given its next task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from csd_emu.config.array_file import SAMPLED
from csd_emu.engines import Fault
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import ConfigurationError, CsdError, DeviceFailed, DeviceLost
from firmware_agent.common.frames.session_frames import Disturb, Disturbed, Sabotage, Sabotaged
from host.core.device_time import MODELLED, DeviceTime
from host.core.records import EventKind, OnEvent
from host.fleet.control_socket import ControlRequest
from host.fleet.device_session import DeviceSession
from host.fleet.fleet import Fleet

# What the agent is told, and what is written down when it has answered.
_SABOTAGE = {
    Fault.CORRUPT: (Sabotage("corrupt"), "corrupt: the next slice that it sends"),
    Fault.FILL: (Sabotage("fill"), "fill: {} bytes of its disk are taken"),
    Fault.CLEAR: (Sabotage("clear"), "clear: its disk is free again"),
}


class _Pending(NamedTuple):
    """A request that waits for its device's next task."""

    request: ControlRequest
    answer: asyncio.Future[str]


class RunFaults:
    """The faults of one run; an async context manager, in which requests may wait."""

    def __init__(self, fleet: Fleet, devices: Collection[str], time: DeviceTime, on_event: OnEvent) -> None:
        """Nothing has happened yet.

        Args:
            fleet: can cut devices off.
            devices: names of all devices of the array.
            time: knows the competitors of modelled and sampled devices.
            on_event: told of every fault that was injected.
        """
        self._fleet, self._devices, self._time, self._on_event = fleet, devices, time, on_event
        self._pending: dict[str, list[_Pending]] = {}
        # Sessions of modelled devices that were slowed down: like any competing task, it ends with the session.
        self._slowed: dict[str, DeviceSession] = {}

    async def __aenter__(self) -> RunFaults:
        return self

    async def __aexit__(self, *_: object) -> None:
        for device, waiting in self._pending.items():
            for pending in waiting:
                _fail(pending, DeviceLost(f"the run ended before {device} was given another task"))
        self._pending.clear()

    async def handle(self, request: ControlRequest) -> str:
        """Do what is asked for and return what came of it; a task for the agent may wait for rounds.

        Raises:
            CsdError: it cannot be done; nothing was.
        """
        device, harm = request.device, request.harm
        if device not in self._devices:
            raise ConfigurationError(f"{device} is not a device of this run's array")
        if request.note:
            return self.record(device, request.note)
        if harm is Fault.CUT:
            self._fleet.cut(device)
            return self.record(device, "cut: the host drops its session and lets it dial in vain")
        if harm is Fault.HEAL:
            self._fleet.heal(device)
            return self.record(device, "heal")
        if harm is not Fault.SLOW and harm not in _SABOTAGE:
            raise ConfigurationError(f"{harm} is not a run's to do")
        if self._fleet.session(device) is None:
            raise DeviceLost(f"{device} has no session with the run, so {harm} cannot be asked of its agent")
        pending = _Pending(request, asyncio.get_running_loop().create_future())
        self._pending.setdefault(device, []).append(pending)
        return await pending.answer

    def waits_for(self, device: str) -> bool:
        """Return whether something waits for a device's next task."""
        return bool(self._pending.get(device))

    async def before_task(self, session: DeviceSession, deadline: Deadline) -> None:
        """Have a device do what waits for it; what it cannot do it says, and goes on.

        Raises:
            DeviceLost: the device is lost.
            ProtocolError: it answered something else.
        """
        device = session.device
        if self._slowed.get(device, session) is not session:
            self._time.set_competitor(device, 0)
            del self._slowed[device]
        while waiting := self._pending.get(device):
            pending = waiting.pop(0)
            try:
                detail = await self._apply(session, pending.request, deadline)
            except DeviceFailed as error:
                _fail(pending, error)
            except CsdError as error:
                _fail(pending, error)
                raise
            else:
                self.record(device, detail)
                if not pending.answer.done():
                    pending.answer.set_result(detail)

    async def slow(self, session: DeviceSession, weight: int, deadline: Deadline) -> str:
        """Give a device a competing task of this cgroup weight, 0 for none; return what was done.

        Raises:
            DeviceError: the device is lost, or cannot do it.
        """
        if self._time.clock(session.device, session.hello.clock) in (MODELLED, SAMPLED):
            self._time.set_competitor(session.device, weight)
            self._slowed[session.device] = session
        else:
            await session.send(Disturb(weight), deadline)
            await session.expect(Disturbed, deadline)
        return f"slow: a competing task of weight {weight}" if weight else "slow: the competing task has ended"

    async def _apply(self, session: DeviceSession, request: ControlRequest, deadline: Deadline) -> str:
        if request.harm is Fault.SLOW:
            return await self.slow(session, request.weight, deadline)
        frame, detail = _SABOTAGE[request.harm]
        await session.send(frame, deadline)
        return detail.format((await session.expect(Sabotaged, deadline)).filled_bytes)

    def record(self, device: str, detail: str) -> str:
        """Write down that something was done to a device, and return what."""
        self._on_event(device, EventKind.INJECTED, detail)
        return detail


def _fail(pending: _Pending, error: CsdError) -> None:
    if not pending.answer.done():
        pending.answer.set_exception(error)

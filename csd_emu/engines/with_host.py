"""An array whose host trains too: drives on their engine, the host's own part as a process beside them."""

from __future__ import annotations

from collections.abc import Awaitable

from csd_emu.array import Device
from csd_emu.deadline import Deadline
from csd_emu.engines.base import DevicePlan, Engine, Fault, Handle, Surroundings
from csd_emu.engines.native import NativeEngine
from csd_emu.progress import Progress
from csd_emu.timeline import HOST


class WithHostNode:
    """Hands everything about the node ``host`` to the native engine, all else to the drives'."""

    def __init__(self, drives: Engine, host: NativeEngine) -> None:
        """Take both engines; they are closed with this one."""
        self._drives, self._host = drives, host
        self.faults = drives.faults

    def surroundings(self, device: Device) -> Surroundings:
        """Return what the device will find around it."""
        return self._of(device).surroundings(device)

    def prepare(self, progress: Progress) -> None:
        """Make what the drives share."""
        self._drives.prepare(progress)

    def start(self, plan: DevicePlan) -> Handle:
        """Start one device (see `Engine.start`)."""
        return self._of(plan.device).start(plan)

    def find(self, plan: DevicePlan) -> Handle | None:
        """Return the running device of this plan."""
        return self._of(plan.device).find(plan)

    def alive(self, handle: Handle) -> bool:
        """Return whether the device still exists."""
        return self._of(handle.plan.device).alive(handle)

    async def wait_ready(self, handle: Handle, hello: Awaitable[None], deadline: Deadline) -> None:
        """Wait for the agent's greeting (see `Engine.wait_ready`)."""
        await self._of(handle.plan.device).wait_ready(handle, hello, deadline)

    def inject(self, handle: Handle, fault: Fault) -> None:
        """Do `fault` to the device (see `Engine.inject`)."""
        self._of(handle.plan.device).inject(handle, fault)

    def stop(self, handle: Handle) -> None:
        """End the device."""
        self._of(handle.plan.device).stop(handle)

    def list_devices(self, array: str) -> list[str]:
        """Return the names of this array's devices that exist, the host's node last."""
        drives = self._drives.list_devices(array)
        return [*drives, *(name for name in self._host.list_devices(array) if name not in drives)]

    def list_arrays(self) -> list[str]:
        """Return the names of all arrays of which a device exists."""
        return sorted({*self._drives.list_arrays(), *self._host.list_arrays()})

    def sweep(self, array: str) -> list[str]:
        """End every device of this array; return their names."""
        swept = self._drives.sweep(array)
        return [*swept, *(name for name in self._host.sweep(array) if name not in swept)]

    def close(self) -> None:
        """Close both engines."""
        self._drives.close()
        self._host.close()

    def _of(self, device: Device) -> Engine:
        return self._host if device.name == HOST else self._drives

"""Native drives of which one is hostile, on request."""

from __future__ import annotations

import asyncio
import sys
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from csd_emu.engines import DevicePlan, NativeEngine
from csd_lab.bench.security.hostile_behaviour import Behaviour
from firmware_agent.common.errors import DeviceLost

_COMMAND = [sys.executable, "-P", "-m", "csd_lab.bench.security.hostile_drive"]


class HostileEngine(NativeEngine):
    """A `NativeEngine` whose drive called `hostile` is a `hostile_drive`, honest until told otherwise."""

    def __init__(self, arrays_folder: Path, hostile: str) -> None:
        """Work below `arrays_folder`."""
        super().__init__(arrays_folder)
        self._name, self._listener = hostile, Listener()
        self._orders: Connection | None = None

    def _command(self, plan: DevicePlan) -> list[str]:
        if plan.device.name != self._name:
            return super()._command(plan)
        return [*_COMMAND, str(plan.folder), str(self._listener.address)]

    async def behave(self, behaviour: Behaviour) -> None:
        """Have the drive, which has dialled in, behave so from its next task on.

        Raises:
            DeviceLost: its process has ended.
        """
        try:
            await asyncio.to_thread(self._tell, behaviour.value.encode())
        except (OSError, EOFError) as error:
            raise DeviceLost(f"{self._name}: the hostile drive's process has ended; its console says why") from error

    def _tell(self, order: bytes) -> None:
        if self._orders is None:
            self._orders = self._listener.accept()
        self._orders.send_bytes(order)
        self._orders.recv_bytes()  # it has been taken in

    def close(self) -> None:
        """Let go of the drive."""
        super().close()
        self._listener.close()
        if self._orders is not None:
            self._orders.close()

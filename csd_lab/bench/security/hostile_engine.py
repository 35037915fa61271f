"""Native drives of which one is hostile, on request."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from csd_emu.engines import DevicePlan, Handle, NativeEngine
from csd_lab.bench.security.hostile_behaviour import Behaviour
from firmware_agent.common.errors import DeviceLost

_COMMAND = [sys.executable, "-P", "-m", "csd_lab.bench.security.hostile_drive"]
_STOP_SECONDS = 5.0


class HostileEngine(NativeEngine):
    """A `NativeEngine` whose drive called `hostile` is a `hostile_drive`, honest until told otherwise."""

    def __init__(self, arrays_folder: Path, hostile: str) -> None:
        """Work below `arrays_folder`."""
        super().__init__(arrays_folder)
        self._name = hostile
        self._hostile: subprocess.Popen[str] | None = None

    async def behave(self, behaviour: Behaviour) -> None:
        """Have the drive behave so from its next task on.

        Raises:
            DeviceLost: its process has ended.
        """
        if await asyncio.to_thread(self._tell, behaviour.value) != behaviour.value:
            raise DeviceLost(f"{self._name}: the hostile drive's process has ended; its console says why")

    def _tell(self, order: str) -> str:
        if self._hostile is None or self._hostile.stdin is None or self._hostile.stdout is None:
            return ""
        try:
            self._hostile.stdin.write(f"{order}\n")
            self._hostile.stdin.flush()
        except OSError:
            return ""
        return self._hostile.stdout.readline().strip()

    def start(self, plan: DevicePlan) -> Handle:
        """Start a drive, or the hostile one."""
        if plan.device.name != self._name:
            return super().start(plan)
        with open(plan.console, "wb") as console:
            self._hostile = subprocess.Popen(
                [*_COMMAND, str(plan.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                text=True,
                start_new_session=True,
                env=dict(os.environ),
            )
        return Handle(plan, str(self._hostile.pid))

    def alive(self, handle: Handle) -> bool:
        """Return whether a drive runs."""
        if handle.plan.device.name != self._name:
            return super().alive(handle)
        return self._hostile is not None and self._hostile.poll() is None

    def list_devices(self, array: str) -> list[str]:
        """Return the drives that run."""
        running = self._hostile is not None and self._hostile.poll() is None
        return sorted([*super().list_devices(array), *([self._name] if running else [])])

    def sweep(self, array: str) -> list[str]:
        """End all drives."""
        if self._hostile is not None:
            self._hostile.terminate()
            try:
                self._hostile.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._hostile.kill()
                self._hostile.wait()
            for stream in (self._hostile.stdin, self._hostile.stdout):
                if stream is not None:
                    stream.close()
        return super().sweep(array)

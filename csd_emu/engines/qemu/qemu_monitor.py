"""QEMU's monitor, reached through libvirt; a machine's serial console: waiting for a line, keeping its end."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libvirt
import libvirt_qemu

from csd_emu.engines.engine_protocol import last_lines
from csd_emu.engines.qemu.domain_xml import CONSOLE, CONSOLE_BYTES
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import BootTimeout, DeviceError, DeviceLost

_POLL_SECONDS = 0.01


class Monitor:
    """Commands to one domain's QEMU."""

    def __init__(self, domain: libvirt.virDomain) -> None:
        """Talk to the QEMU of `domain`."""
        self._domain = domain

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run one command and return what it returns.

        Raises:
            DeviceError: QEMU or libvirt refused it.
        """
        request = json.dumps({"execute": command, "arguments": arguments})
        try:
            answer = json.loads(libvirt_qemu.qemuMonitorCommand(self._domain, request, 0))
        except libvirt.libvirtError as error:
            raise DeviceError(f"{self._domain.name()}: QEMU's {command} failed: {error}") from error
        if "error" in answer:
            raise DeviceError(f"{self._domain.name()}: QEMU's {command} failed: {answer['error'].get('desc')}")
        return answer["return"]

    def save_state(self, path: str, deadline: Deadline) -> None:
        """Write the paused machine's device state, without its shared memory, to `path`."""
        self._share_memory()
        self.execute("migrate", uri=f"file:{path}")
        self._wait("query-migrate", {"completed"}, {"failed", "cancelled"}, deadline)

    def load_state(self, path: str, deadline: Deadline) -> None:
        """Read a device state into a machine that was started to wait for it; it stays paused."""
        self._share_memory()
        self.execute("migrate-incoming", uri=f"file:{path}")
        self._wait("query-status", {"paused", "postmigrate", "prelaunch"}, {"internal-error"}, deadline)

    def plug_namespace(self, path: str, serial: str, bus: str, image_format: str = "raw") -> None:
        """Hot-plug the file at `path` as an NVMe disk with this serial number on the root port `bus`."""
        node = f"disk-{bus}".replace(".", "-")
        file = {"driver": "file", "filename": path, "locking": "off"}
        self.execute("blockdev-add", **{"driver": image_format, "node-name": node, "file": file, "read-only": False})
        self.execute("device_add", driver="nvme", serial=serial, drive=node, bus=bus, id=f"nvme-{node}")

    def set_link(self, card: str, up: bool) -> None:
        """Plug the cable of the network card with this id in or out: what is sent meanwhile is lost."""
        self.execute("set_link", name=card, up=up)

    def read_console(self) -> bytes:
        """Return what the serial console has said since it was read last, as far as it was kept."""
        return base64.b64decode(self.execute("ringbuf-read", device=CONSOLE, size=CONSOLE_BYTES, format="base64"))

    def _share_memory(self) -> None:
        """Keep RAM out of the state: it is in the shared file."""
        self.execute("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])

    def _wait(self, query: str, good: set[str], bad: set[str], deadline: Deadline) -> None:
        while (status := str(self.execute(query).get("status"))) not in good:
            if status in bad or deadline.expired:
                raise BootTimeout(f"{self._domain.name()}: {query} says {status!r} in place of {' or '.join(good)}")
            time.sleep(min(_POLL_SECONDS, deadline.left_seconds))


_LOOK_SECONDS = 0.1
# Of a console, in memory and on disk; a file may have twice that for a moment.
KEPT_BYTES = 256 << 10


class ConsoleTail:
    """What a console has said so far, of which the end is kept."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        """Take what returns what is new; it may raise `DeviceError`, of a machine that has ended."""
        self._read, self._kept = read, b""

    def text(self) -> str:
        """Read what is new, and return it all."""
        with contextlib.suppress(DeviceError):
            self._kept = (self._kept + self._read())[-KEPT_BYTES:]
        return self._kept.decode("utf-8", "replace")


def keep(path: Path, data: bytes) -> None:
    """Append to a file of which the last `KEPT_BYTES` are kept; no link is followed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "r+b", buffering=0) as file:
        file.write(data)
        if (size := os.fstat(descriptor).st_size) > 2 * KEPT_BYTES:
            rest = os.pread(descriptor, KEPT_BYTES, size - KEPT_BYTES)
            file.truncate(0)
            file.write(rest)


def wait_for_line(
    read: Callable[[], str],
    marker: str,
    alive: Callable[[], bool],
    deadline: Deadline,
    name: str = "console",
    poll_seconds: float = _LOOK_SECONDS,
) -> str:
    """Return what follows `marker` on the first line that has it.

    Args:
        read: returns all that the machine's console has said so far.
        marker: what to look for.
        alive: whether the machine still runs.
        deadline: until when.
        name: of the machine, for messages.
        poll_seconds: how often it is read.

    Raises:
        DeviceLost: the machine ended.
        BootTimeout: the deadline passed. Both carry the console's last lines.
    """
    while True:
        text = read()
        for line in text.splitlines()[: None if text.endswith("\n") else -1]:
            if marker in line:
                return line.partition(marker)[2].strip()
        if not alive():
            raise DeviceLost(f"{name} ended before {marker!r}; its last words:\n{last_lines(text)}")
        if deadline.expired:
            said = last_lines(text)
            raise BootTimeout(f"{name}: no {marker!r} within {deadline.seconds:.0f} s; its last words:\n{said}")
        time.sleep(poll_seconds)

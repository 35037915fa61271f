"""QEMU's monitor, reached through libvirt."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import libvirt
import libvirt_qemu

from csd_emu.engines.qemu.domain_xml import CONSOLE, CONSOLE_BYTES
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import BootTimeout, DeviceError

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
        capabilities = [{"capability": "x-ignore-shared", "state": True}]
        self.execute("migrate-set-capabilities", capabilities=capabilities)

    def _wait(self, query: str, good: set[str], bad: set[str], deadline: Deadline) -> None:
        while (status := str(self.execute(query).get("status"))) not in good:
            if status in bad or deadline.expired:
                raise BootTimeout(f"{self._domain.name()}: {query} says {status!r} in place of {' or '.join(good)}")
            time.sleep(min(_POLL_SECONDS, deadline.left_seconds))

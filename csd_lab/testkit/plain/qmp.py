"""QEMU's monitor on a Unix socket of our own: libvirt has no part in a plain machine."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DeviceError

_POLL_SECONDS = 0.02


class Qmp:
    """Commands to one QEMU, one after the other."""

    def __init__(self, path: Path, deadline: Deadline) -> None:
        """Connect to the socket `path` as soon as QEMU listens there.

        Raises:
            DeviceError: it does not before the deadline.
        """
        self._name = path.parent.name
        self._socket = _connect(path, deadline)
        self._socket.settimeout(deadline.seconds)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run one command and return what it returns.

        Raises:
            DeviceError: QEMU refused it, or has ended.
        """
        request = {"execute": command, "arguments": arguments}
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            while line := self._lines.readline():
                answer = json.loads(line)
                if "error" in answer:
                    raise DeviceError(f"{self._name}: QEMU's {command} failed: {answer['error'].get('desc')}")
                if "return" in answer:
                    return answer["return"]
        except OSError as error:
            raise DeviceError(f"{self._name}: QEMU's monitor is lost ({error}); start the machine again") from error
        raise DeviceError(f"{self._name}: QEMU ended during {command}; start the machine again")

    def close(self) -> None:
        """End the connection."""
        self._lines.close()
        self._socket.close()


def _connect(path: Path, deadline: Deadline) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
            return connection
        except OSError as error:
            connection.close()
            if deadline.expired:
                raise DeviceError(f"{path.parent.name}: QEMU's monitor does not answer ({error})") from error
        time.sleep(_POLL_SECONDS)

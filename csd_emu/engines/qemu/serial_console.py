"""A machine's serial console: waiting for a line of it, and keeping the last of it in a file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from csd_emu.engines.engine_protocol import last_lines
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import BootTimeout, DeviceError, DeviceLost

_POLL_SECONDS = 0.1
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
    poll_seconds: float = _POLL_SECONDS,
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

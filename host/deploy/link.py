"""How fast the way to a drive is, measured in wall time on the connection itself."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from csd_emu.deadline import Deadline
from csd_emu.remote.shell import Shell

FIRST_BYTES, MOST_BYTES = 2**18, 2**23
# A measurement that took less is repeated with more bytes: it was mostly the start of a command.
ENOUGH_SECONDS = 0.5


@dataclass(frozen=True)
class LinkSpeed:
    """The clock is ``wall``: other work on the way shows.

    Attributes:
        upload_bytes_per_second, download_bytes_per_second: to the drive and from it, start of a command included.
        round_trip_seconds: of the shortest of some empty commands.
    """

    upload_bytes_per_second: float
    download_bytes_per_second: float
    round_trip_seconds: float


def measure_link(shell: Shell, deadline: Deadline) -> LinkSpeed:
    """Send random bytes to a drive and have it send some.

    Raises:
        DriveUnreachable: the connection broke, or it takes longer than the deadline allows.
        DriveUnfit: the drive cannot send or receive.
    """
    trips = [_time(shell, ":", b"", deadline) for _ in range(3)]
    return LinkSpeed(_upload(shell, deadline), _download(shell, deadline), min(trips))


def _upload(shell: Shell, deadline: Deadline) -> float:
    size = FIRST_BYTES
    while True:
        seconds = _time(shell, "cat >/dev/null", os.urandom(size), deadline)
        if seconds >= ENOUGH_SECONDS or size >= MOST_BYTES:
            return size / seconds
        size *= 4


def _download(shell: Shell, deadline: Deadline) -> float:
    size = FIRST_BYTES
    while True:
        # Zeros would be compressed away by a tunnel that does so; a slow drive's random bytes are its own speed.
        seconds = _time(shell, f"dd if=/dev/urandom bs=65536 count={size // 65536} 2>/dev/null", b"", deadline)
        if seconds >= ENOUGH_SECONDS or size >= MOST_BYTES:
            return size / seconds
        size *= 4


def _time(shell: Shell, command: str, stdin: bytes, deadline: Deadline) -> float:
    begin = time.monotonic()
    shell.check(command, deadline, stdin)
    return time.monotonic() - begin

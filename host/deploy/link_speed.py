"""Speed of the connection to a drive, measured in wall time on the connection itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from csd_emu.engines.remote.shell import Shell
from csd_emu.util.deadline import Deadline

FIRST_BYTES, MOST_BYTES = 2**18, 2**23
# A measurement that took less is repeated with more bytes: too much of it was the start of a command.
ENOUGH_SECONDS, ENOUGH_TRIPS = 0.5, 5.0
_BLOCK_BYTES = 2**16
_SEND = f"dd if=/dev/urandom bs={_BLOCK_BYTES} count={{}} 2>/dev/null"


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


def measure_link(shell: Shell, deadline: Deadline, now: Callable[[], float] = time.monotonic) -> LinkSpeed:
    """Send random bytes to a drive and have it send some; `now` returns monotonic seconds.

    Raises:
        DriveUnreachable: the connection broke, or it takes longer than the deadline allows.
        DriveUnfit: the drive cannot send or receive.
    """

    def run(command: str, stdin: bytes) -> float:
        begin = now()
        shell.check(command, deadline, stdin)
        return now() - begin

    trip = min(run(":", b"") for _ in range(3))
    return LinkSpeed(
        _rate(lambda size: run("cat >/dev/null", os.urandom(size)), trip),
        # Zeros would be compressed away by a tunnel that does so; a slow drive's random bytes are its own speed.
        _rate(lambda size: run(_SEND.format(size // _BLOCK_BYTES), b""), trip),
        trip,
    )


def _rate(transfer: Callable[[int], float], trip_seconds: float) -> float:
    """Return bytes per second of a `transfer`, given so many bytes that the start of its command weighs little."""
    size = FIRST_BYTES
    while True:
        seconds = transfer(size)
        if seconds >= max(ENOUGH_SECONDS, ENOUGH_TRIPS * trip_seconds) or size >= MOST_BYTES:
            return size / seconds
        size *= 2

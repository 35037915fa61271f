"""What a virtual machine's own host keeps from it: the wall's clock goes on while its processors stand still."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import psutil

_NOT_BUSY = ("idle", "iowait", "steal", "guest", "guest_nice")


class Ticks(NamedTuple):
    """Seconds of all processors together since the machine began: given to somebody, and kept from who wanted them."""

    busy: float
    stolen: float


def read_ticks() -> Ticks:
    """Return the machine's; where it is nobody's guest, or does not say so, nothing is stolen."""
    times = psutil.cpu_times()._asdict()
    # Guests' seconds are in user's.
    busy = sum(seconds for kind, seconds in times.items() if kind not in _NOT_BUSY)
    return Ticks(busy, times.get("steal", 0.0))


class StolenTime:
    """Watches from now on how much of the processor time that was wanted here was given to others."""

    def __init__(self, read: Callable[[], Ticks] = read_ticks) -> None:
        """Begin to watch."""
        self._read, self._begin = read, read()

    @property
    def share(self) -> float:
        """Stolen over wanted seconds until now; 0 if none were wanted."""
        now = self._read()
        stolen, busy = now.stolen - self._begin.stolen, now.busy - self._begin.busy
        wanted = stolen + busy
        return stolen / wanted if wanted > 0 else 0.0

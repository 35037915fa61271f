"""Throttle of an engine's reads, so that the host's latency keeps its limit."""

from __future__ import annotations

from typing import Protocol

from csd_emu.perfmodel.flash.flash_queues import Integers


class ReadThrottle(Protocol):
    """Decides how fast a drive's engine may read, from the latencies that its host has seen.

    Attributes:
        bytes_per_second: the engine's commands enter at this rate at most; 0 parks training.
        interval_ns: device time after which it is asked again.
        silent: whether the host asks for nothing, so that it must be told of the next command.
    """

    bytes_per_second: float
    interval_ns: int
    silent: bool

    def state(self) -> list[float]:
        """Return all that changes, for `restore`."""

    def restore(self, state: list[float]) -> None:
        """Go on from a state."""

    def wake(self) -> None:
        """Take that a command of the silent host has arrived."""

    def observe(self, now_ns: int, latency_ns: Integers) -> None:
        """Take the latencies, (n,) nanoseconds, of the host's commands that ended in the interval up to `now_ns`."""

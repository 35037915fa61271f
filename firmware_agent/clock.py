"""The device's own stopwatch.

Under QEMU's instruction-counted clock the guest's monotonic clock *is* device time, as long as a task is runnable; so
the stopwatch is read only around work, never around a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from firmware_agent.wire import PhaseSeconds

PHASES = ("forward", "backward", "update", "encode")


class Stopwatch:
    """Sums the seconds of each phase: ``lap(phase)`` charges the time since the last mark."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Start with nothing charged; `now` returns monotonic seconds."""
        self.now = now
        self._sums = dict.fromkeys(PHASES, 0.0)
        self._mark = now()

    def mark(self) -> None:
        """Forget the time up to now: a wait, a disk or the network lies behind."""
        self._mark = self.now()

    def lap(self, phase: str) -> None:
        """Charge the time since the last mark or lap to `phase`."""
        now = self.now()
        self._sums[phase] += now - self._mark
        self._mark = now

    def take(self) -> PhaseSeconds:
        """Return the sums and start again at zero."""
        taken = PhaseSeconds(**self._sums)
        self._sums = dict.fromkeys(PHASES, 0.0)
        return taken

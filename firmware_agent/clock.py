"""The device's own stopwatch.

Under QEMU's instruction-counted clock the guest's monotonic clock *is* device time, as long as a task is runnable; so
the stopwatch is read only around work, never around a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from firmware_agent.common.frames.frame_fields import PhaseSeconds

PHASES = ("forward", "backward", "update", "encode")
# A clock that jumps so far between two looks shows that another task had the core.
_SLICE_SECONDS = 1e-3
_SLICES, _LONGEST_SECONDS = 4, 0.05


class Stopwatch:
    """Sums the seconds of each phase: ``lap(phase)`` charges the time since the last mark.

    Attributes:
        now: returns monotonic seconds.
        on_lap: called with the phase at the end of each lap, with ``idle`` at a mark; None for nobody.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Start with nothing charged; `now` returns monotonic seconds."""
        self.now = now
        self.on_lap: Callable[[str], None] | None = None
        self._sums = dict.fromkeys(PHASES, 0.0)
        self._mark = now()

    def mark(self) -> None:
        """Forget the time up to now: a wait, a disk or the network lies behind."""
        if self.on_lap is not None:
            self.on_lap("idle")
        self._mark = self.now()

    def lap(self, phase: str) -> None:
        """Charge the time since the last mark or lap to `phase`."""
        now = self.now()
        self._sums[phase] += now - self._mark
        self._mark = now
        if self.on_lap is not None:
            self.on_lap(phase)

    def take(self) -> PhaseSeconds:
        """Return the sums and start again at zero."""
        taken = PhaseSeconds(**self._sums)
        self._sums = dict.fromkeys(PHASES, 0.0)
        return taken


def wait_for_fresh_slice(now: Callable[[], float]) -> None:
    """Return at the start of a time slice of this process, if another task shares the core.

    Slices last several milliseconds: a measurement that began anywhere in one would differ by as much. Alone on the
    core there are no slices, and the wait ends after a twentieth of a second.
    """
    start = before = now()
    slices = 0
    while slices < _SLICES and before - start < _LONGEST_SECONDS:
        moment = now()
        slices += moment - before > _SLICE_SECONDS
        before = moment

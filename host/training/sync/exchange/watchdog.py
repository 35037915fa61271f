"""Deadline of a device's part of a step: new data extends it, repeated bytes do not. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable

# All of a part must be there within so many times what a device may be silent: the floor of its progress is the part's
# bytes over that time, however steadily they drip.
WHOLE_FACTOR = 4.0


class Pace:
    """The deadlines of one device: of the next news, and of the whole part."""

    def __init__(self, watchdog_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """Begin now; `now` returns monotonic seconds."""
        self.watchdog_seconds, self._now = watchdog_seconds, now
        self._news = self._begin = now()

    def moved(self) -> None:
        """Note that something new has come, or that the device got something to do."""
        self._news = self._now()

    def begin(self) -> None:
        """Begin anew: with the next part, or while the device waits for others or the host."""
        self._news = self._begin = self._now()

    @property
    def left_seconds(self) -> float:
        """Seconds until the device is given up, never negative."""
        end = min(self._news + self.watchdog_seconds, self._begin + WHOLE_FACTOR * self.watchdog_seconds)
        return max(0.0, end - self._now())

    @property
    def told(self) -> str:
        """What is said of a device that is given up now."""
        if self._now() - self._news >= self.watchdog_seconds:
            return f"silent for {self.watchdog_seconds:g} s, or nothing new came"
        return f"its part of the step was not whole after {WHOLE_FACTOR * self.watchdog_seconds:g} s"

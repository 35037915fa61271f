"""Deadlines are values that are passed down, never nested timeouts."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """A point in wall time by which something must have happened."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """Set the deadline `seconds` from now; `now` returns monotonic seconds."""
        self.seconds = seconds
        self._now = now
        self._end = now() + seconds

    @property
    def left_seconds(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self._end - self._now())

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._now() >= self._end

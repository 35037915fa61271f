"""Number of events of a kind that a drive may have written down in a minute; what is beyond is counted. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

MOST_LISTED = 30
_MINUTE_SECONDS = 60.0
# Names in one minute; of any further ones all together are one.
_MOST_KEYS = 1 << 16
_OTHERS = "(others)"

Key = tuple[str, str]
"""Device and kind of event."""


class EventBudget:
    """Lists the first events of each key in a minute. All minutes begin with the first event after the one before."""

    def __init__(self, most: int = MOST_LISTED, now: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing.

        Args:
            most: events of a key that are listed in a minute.
            now: returns monotonic seconds.
        """
        self._most, self._now = most, now
        self._begin: float | None = None
        self._counts: Counter[Key] = Counter()

    def admits(self, device: str, kind: str) -> bool:
        """Count an event, and return whether it is to be listed; call `take_counted` first."""
        if self._begin is None:
            self._begin = self._now()
        key = device, kind
        if key not in self._counts and len(self._counts) >= _MOST_KEYS:
            key = _OTHERS, kind
        self._counts[key] += 1
        return self._counts[key] <= self._most

    def take_counted(self, at_once: bool = False) -> dict[Key, int]:
        """Return, and forget, how many events were not listed in the minute that is over, or `at_once` in this one."""
        if self._begin is None or not (at_once or self._now() - self._begin >= _MINUTE_SECONDS):
            return {}
        counted = {key: count - self._most for key, count in self._counts.items() if count > self._most}
        self._begin, self._counts = None, Counter()
        return counted

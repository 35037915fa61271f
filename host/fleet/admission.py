"""Admission of calls that have not said hello yet, and of callers that were refused. Pure.

A caller is a device of the array whose certificate counts. All others together are one caller more, whatever name they
come with: they take nothing from a device.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from host.core.event_budget import EventBudget

# Calls that have not said hello yet, and as many that wait for their refusal: of one device, and of all strangers.
MOST_OF_ONE, _MOST_BESIDE = 2, 16
# So many calls of one device are taken at once in a minute; each further one waits.
_FREE_CALLS, _CALL_SECONDS, _MINUTE_SECONDS = 30, 1.0, 60.0
# So many refusals in a row are answered at once; then each waits twice as long as the one before.
_FREE_REFUSALS, _FIRST_SECONDS, _LONGEST_SECONDS = 3, 0.25, 8.0
# After so long without a refusal all is forgotten.
_FORGET_SECONDS = _MINUTE_SECONDS
STRANGER = ""


@dataclass
class _Refusals:
    """How often a device was refused in a row, and when last."""

    count: int = 0
    last_seconds: float = 0.0


class Admission:
    """Counts calls by caller: a device's name, or `STRANGER`, which any other name is too."""

    def __init__(self, devices: Collection[str], now: Callable[[], float] = time.monotonic) -> None:
        """Begin with nobody at the door; `now` returns monotonic seconds.

        Attributes:
            cut: devices that dial in vain until they are taken out again.
            budget: of log lines on refusals.
        """
        self.cut: set[str] = set()
        self.budget = EventBudget()
        self._devices, self._now = frozenset(devices), now
        self._waiting: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._refusals: dict[str, _Refusals] = {}
        self._calls: Counter[str] = Counter()
        self._begin = now()

    @property
    def most(self) -> int:
        """Calls that may wait at once to say hello; as many may wait for their refusal."""
        return MOST_OF_ONE * len(self._devices) + _MOST_BESIDE

    def enter(self, name: str) -> bool:
        """Count a call that has not said hello, if there is room for it; then `leave` must follow."""
        return self._take(self._waiting, name)

    def leave(self, name: str) -> None:
        """Take back one call of `enter`."""
        self._waiting[self._key(name)] -= 1

    def detain(self, name: str) -> bool:
        """Count a call that waits for its refusal, if there is room for it; then `release` must follow."""
        return self._take(self._refused, name)

    def release(self, name: str) -> None:
        """Take back one call of `detain`."""
        self._refused[self._key(name)] -= 1

    def pace(self, name: str) -> float:
        """Return how many seconds a call waits before its hello is read: none, but of a device that dials too often."""
        if self._now() - self._begin > _MINUTE_SECONDS:
            self._begin = self._now()
            self._calls.clear()
        self._calls[self._key(name)] += 1
        return 0.0 if self._calls[self._key(name)] <= _FREE_CALLS else _CALL_SECONDS

    def refuse(self, name: str) -> float:
        """Note a refused hello; return how many seconds to wait before the device is told."""
        refusals, now = self._refusals.setdefault(self._key(name), _Refusals()), self._now()
        if now - refusals.last_seconds > _FORGET_SECONDS:
            refusals.count = 0
        refusals.count, refusals.last_seconds = refusals.count + 1, now
        beyond = refusals.count - _FREE_REFUSALS
        return 0.0 if beyond <= 0 else min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(beyond - 1, 10))

    def accept(self, name: str) -> None:
        """Note a hello that was accepted."""
        self._refusals.pop(self._key(name), None)

    def _take(self, places: Counter[str], name: str) -> bool:
        key = self._key(name)
        if places[key] >= (_MOST_BESIDE if key == STRANGER else MOST_OF_ONE):
            return False
        places[key] += 1
        return True

    def _key(self, name: str) -> str:
        return name if name in self._devices else STRANGER

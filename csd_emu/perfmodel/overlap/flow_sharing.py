"""Sharing of the host's side of the link by groups of drives, for `csd_emu.perfmodel.overlap.flow`."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Protocol


class Sharing(Protocol):
    """Who has how much of the host's side; `next_seconds` is when the next piece will have been carried."""

    next_seconds: float

    def begin(self, group: int, size_bytes: int, now: float) -> None:
        """Begin with a piece of a group that has none on the link, not after `next_seconds`."""

    def end(self) -> list[int]:
        """Go on to `next_seconds`; return the groups whose pieces have been carried by then."""


class EvenSharing:
    """Equal parts: no drive's own side is ever narrower than its part of the host's.

    `level` is what a piece that has been there from the beginning would have been given by now: one that enters at
    level x with s bytes ends at level x + s (as in `csd_emu.perfmodel.sharing`).
    """

    def __init__(self, weights: Sequence[int], free: float) -> None:
        """Begin with nothing; `weights` are the drives of each group, `free` the host's side in bytes per second."""
        self.next_seconds = math.inf
        self._weights, self._free = weights, free
        self._on: list[tuple[float, int]] = []
        self._now = self._level = 0.0
        self._drives = 0

    def begin(self, group: int, size_bytes: int, now: float) -> None:
        """See `Sharing`."""
        on = self._on
        if on:
            self._level += (now - self._now) * self._free / self._drives
        self._now = now
        heapq.heappush(on, (self._level + size_bytes, group))
        self._drives += self._weights[group]
        self.next_seconds = now + (on[0][0] - self._level) * self._drives / self._free

    def end(self) -> list[int]:
        """See `Sharing`."""
        on, off = self._on, []
        self._now, self._level = self.next_seconds, on[0][0]
        while on and on[0][0] <= self._level:
            off.append(group := heapq.heappop(on)[1])
            self._drives -= self._weights[group]
        self.next_seconds = self._now + (on[0][0] - self._level) * self._drives / self._free if on else math.inf
        return off


class UnevenSharing:
    """Equal parts, but what a drive's own side cannot take of its part is shared by the others."""

    def __init__(self, weights: Sequence[int], free: float, rates: Sequence[float]) -> None:
        """Begin with nothing; `rates` are those of the own sides, the others as for `EvenSharing`."""
        self.next_seconds = math.inf
        self._free, self._now = free, 0.0
        # (own rate, group, drives), the narrowest own side first.
        self._sides = sorted(zip(rates, range(len(rates)), weights, strict=True))
        self._left, self._rate = [0.0] * len(rates), [0.0] * len(rates)
        self._off = [math.inf] * len(rates)

    def begin(self, group: int, size_bytes: int, now: float) -> None:
        """See `Sharing`."""
        self._carry(now)
        self._left[group] = size_bytes
        self._share()

    def end(self) -> list[int]:
        """See `Sharing`."""
        off = [group for group, seconds in enumerate(self._off) if seconds <= self.next_seconds]
        self._carry(self.next_seconds)
        for group in off:
            self._left[group], self._off[group] = 0.0, math.inf
        self._share()
        return off

    def _carry(self, now: float) -> None:
        """Take off what has been carried since the last time."""
        since, left, rate = now - self._now, self._left, self._rate
        self._now = now
        for group, off in enumerate(self._off):
            if off < math.inf:
                left[group] -= rate[group] * since

    def _share(self) -> None:
        """Share the host's side out anew among those that are on it, the narrowest own side first."""
        left, free = self._left, self._free
        on = [side for side in self._sides if left[side[1]] > 0]
        drives = sum([weight for _, _, weight in on])
        for own, group, weight in on:
            part = free / drives
            rate = self._rate[group] = own if own < part else part
            self._off[group] = self._now + left[group] / rate
            free -= rate * weight
            drives -= weight
        self.next_seconds = min(self._off)

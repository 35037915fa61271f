"""One direction of the simulated link: pieces go in, and come out at the other end in the order they went in.

Every drive has one pipe in each direction. It carries one piece at a time: `slice_seconds` at the side that puts it on,
then its bytes, then the latency, during which the next one is carried. The pipes whose bytes are under way share the
host's side in equal parts (as transfers do in `csd_emu.timeline`); none has more than a drive's own side.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from csd_emu.communication.link import SharedLink
from firmware_agent.send_queue import Piece


class Carried(NamedTuple):
    """A piece on its way to or from the drives of one group; `begin_seconds` is when its turn came."""

    arrival_seconds: float
    begin_seconds: float
    end_seconds: float
    group: int
    piece: Piece


class Pipes(Protocol):
    """One direction of the link; `next_seconds` is when something happens in it next, infinity if nothing does."""

    next_seconds: float

    def put(self, group: int, piece: Piece, now: float) -> None:
        """Add a piece behind those that are in the group's pipe."""

    def advance(self, now: float) -> list[Carried]:
        """Go on to `now`, which is not after `next_seconds`, and return what has arrived by then."""

    def change(self, link: SharedLink, now: float) -> None:
        """Go on with another link; what has been carried stays so."""


def make_pipes(weights: Sequence[int], link: SharedLink) -> Pipes:
    """Return the pipes of one direction, of groups of so many drives that all do the same at the same time."""
    return LonePipe(weights[0], link) if len(weights) == 1 else SharedPipes(weights, link)


class LonePipe:
    """The pipe of one group. Nobody else shares the link, so a piece's arrival is known when it goes in."""

    def __init__(self, weight: int, link: SharedLink) -> None:
        """Begin empty; each of the `weight` drives has that part of the host's side."""
        self.next_seconds = math.inf
        self._weight, self._link = weight, link
        self._seconds_per_byte = _seconds_per_byte(link, weight)
        self._free_seconds = 0.0
        self._carried: deque[Carried] = deque()

    def put(self, group: int, piece: Piece, now: float) -> None:
        """See `Pipes`."""
        link, free = self._link, self._free_seconds
        begin = now if now > free else free
        self._free_seconds = end = begin + link.slice_seconds + piece.size_bytes * self._seconds_per_byte
        arrival = end + link.latency_seconds
        if not self._carried:
            self.next_seconds = arrival
        elif arrival < (last := self._carried[-1].arrival_seconds):  # the latency has become shorter meanwhile
            arrival = last
        self._carried.append(Carried(arrival, begin, end, group, piece))

    def advance(self, now: float) -> list[Carried]:
        """See `Pipes`."""
        carried, arrived = self._carried, []
        while carried and carried[0].arrival_seconds <= now:
            arrived.append(carried.popleft())
        self.next_seconds = carried[0].arrival_seconds if carried else math.inf
        return arrived

    def change(self, link: SharedLink, now: float) -> None:
        """See `Pipes`."""
        before, old = list(self._carried), self._seconds_per_byte
        self._link, self._seconds_per_byte = link, _seconds_per_byte(link, self._weight)
        self._carried.clear()
        self._free_seconds = now
        for part in before:
            if part.end_seconds <= now:
                self._carried.append(part)
            elif part.begin_seconds >= now:
                self.put(part.group, part.piece, now)
            else:
                left_seconds = min(part.end_seconds - now, part.piece.size_bytes * old)
                fixed_seconds = part.end_seconds - now - left_seconds
                end = now + fixed_seconds + left_seconds / old * self._seconds_per_byte
                last = self._carried[-1].arrival_seconds if self._carried else 0.0
                arrival = max(end + link.latency_seconds, last)
                self._carried.append(part._replace(arrival_seconds=arrival, end_seconds=end))
                self._free_seconds = end
        self.next_seconds = self._carried[0].arrival_seconds if self._carried else math.inf


class SharedPipes:
    """The pipes of several groups, which share the host's side while their bytes are under way.

    `level` is how many bytes a piece on the link since the beginning would have been given by now: a piece that gets on
    it at level x with s bytes gets off at level x + s (see `csd_emu.sharing`).
    """

    def __init__(self, weights: Sequence[int], link: SharedLink) -> None:
        """Begin empty."""
        self.next_seconds = math.inf
        self._weights, self._link = list(weights), link
        self._now = self._level = 0.0
        self._lowest_off_seconds = math.inf
        self._waiting: list[deque[Piece]] = [deque() for _ in weights]
        # What each pipe carries: since when, until when it is prepared, and the level at which it gets off the link.
        self._begin = [0.0] * len(weights)
        self._prepared = [math.inf] * len(weights)
        self._off = [math.inf] * len(weights)
        self._arriving: deque[Carried] = deque()

    def put(self, group: int, piece: Piece, now: float) -> None:
        """See `Pipes`."""
        self._waiting[group].append(piece)
        if len(self._waiting[group]) == 1:
            self._raise_level(now)
            self._turn(group, now)
            self._look_ahead(now)

    def advance(self, now: float) -> list[Carried]:
        """See `Pipes`."""
        self._raise_level(now)
        for group in range(len(self._weights)):
            if self._off[group] <= self._level:
                self._get_off(group, now)
        for group, prepared in enumerate(self._prepared):
            if prepared <= now:
                self._prepared[group] = math.inf
                self._off[group] = self._level + self._waiting[group][0].size_bytes
        arrived = []
        while self._arriving and self._arriving[0].arrival_seconds <= now:
            arrived.append(self._arriving.popleft())
        self._look_ahead(now)
        return arrived

    def change(self, link: SharedLink, now: float) -> None:
        """See `Pipes`."""
        self._raise_level(now)
        self._link = link
        self._look_ahead(now)

    def _turn(self, group: int, now: float) -> None:
        self._begin[group], self._prepared[group] = now, now + self._link.slice_seconds

    def _get_off(self, group: int, now: float) -> None:
        piece = self._waiting[group].popleft()
        self._off[group] = math.inf
        last = self._arriving[-1].arrival_seconds if self._arriving else 0.0
        arrival = max(now + self._link.latency_seconds, last)
        self._arriving.append(Carried(arrival, self._begin[group], now, group, piece))
        if self._waiting[group]:
            self._turn(group, now)

    def _rate(self) -> float:
        """Return the bytes per second of each piece that is on the link; infinity if none is."""
        weight = sum(w for w, off in zip(self._weights, self._off, strict=True) if off < math.inf)
        return 1 / _seconds_per_byte(self._link, weight) if weight else math.inf

    def _raise_level(self, now: float) -> None:
        lowest = min(self._off)
        if lowest < math.inf:
            level = self._level + (now - self._now) * self._rate()
            # What was to get off now does, whatever the rounding.
            self._level = lowest if now >= self._lowest_off_seconds else min(level, lowest)
        self._now = now

    def _look_ahead(self, now: float) -> None:
        lowest = min(self._off)
        self._lowest_off_seconds = now + (lowest - self._level) / self._rate() if lowest < math.inf else math.inf
        arrival = self._arriving[0].arrival_seconds if self._arriving else math.inf
        self.next_seconds = min(self._lowest_off_seconds, arrival, *self._prepared)


def _seconds_per_byte(link: SharedLink, weight: int) -> float:
    """Return what a byte of each takes while the pipes of so many drives are on the link."""
    return max(weight / link.free_bytes_per_second, 1 / link.device_bytes_per_second)

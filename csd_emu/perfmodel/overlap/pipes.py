"""One direction of the simulated link: pieces go in, and come out at the other end in the order they went in.

Every drive has one pipe in each direction. It carries one piece at a time: `slice_seconds` at the side that puts it on,
then its bytes, then the latency, during which the next one is carried. The pipes whose bytes are under way share the
host's side in equal parts; what a drive's own side cannot take of its part is shared by the others. A link that serves
its drives in turns instead is in `csd_emu.perfmodel.overlap.round_robin`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from csd_emu.perfmodel.overlap.carried import Arrivals, Carried, Pipes
from csd_emu.perfmodel.overlap.round_robin import RoundRobinPipes
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from firmware_agent.common.send_queue import Piece


def make_pipes(weights: Sequence[int], own: Sequence[OwnLink], link: SharedLink) -> Pipes:
    """Return the pipes of one direction.

    Args:
        weights: (groups,) so many drives do the same at the same time; 1 each if the link serves in turns.
        own: (groups,) what each of them has.
        link: what all share.
    """
    if link.turn_bytes:
        return RoundRobinPipes(own, link)
    return LonePipe(weights[0], own[0], link) if len(weights) == 1 else SharedPipes(weights, own, link)


class LonePipe:
    """The pipe of one group. Nobody else shares the link, so a piece's arrival is known when it goes in."""

    def __init__(self, weight: int, own: OwnLink, link: SharedLink) -> None:
        """Begin empty; each of the `weight` drives has that part of the host's side."""
        self.next_seconds = math.inf
        self._weight, self._own = weight, own
        self._free_seconds = 0.0
        self._carried: deque[Carried] = deque()
        self._take(link)

    def put(self, group: int, piece: Piece, now: float) -> None:
        """See `Pipes`."""
        free = self._free_seconds
        begin = now if now > free else free
        self._free_seconds = end = begin + self._slice_seconds + piece.size_bytes * self._seconds_per_byte
        arrival = end + self._latency_seconds
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
        self._take(link)
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
                arrival = max(end + self._latency_seconds, last)
                self._carried.append(part._replace(arrival_seconds=arrival, end_seconds=end))
                self._free_seconds = end
        self.next_seconds = self._carried[0].arrival_seconds if self._carried else math.inf

    def _take(self, link: SharedLink) -> None:
        rate = min(link.free_bytes_per_second / self._weight, link.device_bytes_per_second, self._own.bytes_per_second)
        self._seconds_per_byte, self._slice_seconds = 1 / rate, link.slice_seconds
        self._latency_seconds = link.latency_seconds + self._own.latency_seconds


class SharedPipes:
    """The pipes of several groups, which share the host's side while their bytes are under way."""

    def __init__(self, weights: Sequence[int], own: Sequence[OwnLink], link: SharedLink) -> None:
        """Begin empty."""
        self.next_seconds = math.inf
        self._weights, self._own, self._now = list(weights), list(own), 0.0
        self._waiting: list[deque[Piece]] = [deque() for _ in weights]
        # What each pipe carries: since when; until when it is prepared; of its bytes, how many are left, how many go
        # each second, and when none will be left.
        self._begin = [0.0] * len(weights)
        self._prepared = [math.inf] * len(weights)
        self._left, self._rate = [0.0] * len(weights), [0.0] * len(weights)
        self._off = [math.inf] * len(weights)
        self._arrivals = Arrivals(len(weights))
        self._take(link)

    def put(self, group: int, piece: Piece, now: float) -> None:
        """See `Pipes`."""
        self._waiting[group].append(piece)
        if len(self._waiting[group]) == 1:
            self._turn(group, now)
            self.next_seconds = min(self.next_seconds, self._prepared[group])

    def advance(self, now: float) -> list[Carried]:
        """See `Pipes`."""
        if min(self._off) <= now or min(self._prepared) <= now:
            for group, off in enumerate(self._off):
                if off <= now:
                    self._get_off(group, now)
            self._carry(now)
            for group, prepared in enumerate(self._prepared):
                if prepared <= now:
                    self._prepared[group], self._left[group] = math.inf, self._waiting[group][0].size_bytes
            self._share(now)
        arrived = self._arrivals.take(now)
        self._look_ahead()
        return arrived

    def change(self, link: SharedLink, now: float) -> None:
        """See `Pipes`."""
        self._take(link)
        self._carry(now)
        self._share(now)
        self._look_ahead()

    def _take(self, link: SharedLink) -> None:
        self._free, self._slice_seconds = link.free_bytes_per_second, link.slice_seconds
        self._latency_seconds = [link.latency_seconds + own.latency_seconds for own in self._own]
        rates = [min(link.device_bytes_per_second, own.bytes_per_second) for own in self._own]
        # (own rate, group, drives), the narrowest own side first.
        self._sides = sorted(zip(rates, range(len(rates)), self._weights, strict=True))

    def _turn(self, group: int, now: float) -> None:
        self._begin[group], self._prepared[group] = now, now + self._slice_seconds

    def _get_off(self, group: int, now: float) -> None:
        piece = self._waiting[group].popleft()
        self._left[group], self._off[group] = 0.0, math.inf
        self._arrivals.add(Carried(now + self._latency_seconds[group], self._begin[group], now, group, piece))
        if self._waiting[group]:
            self._turn(group, now)

    def _carry(self, now: float) -> None:
        """Take off what has been carried since the last time."""
        since, left, rate = now - self._now, self._left, self._rate
        for group, off in enumerate(self._off):
            if off < math.inf:
                left[group] -= rate[group] * since
        self._now = now

    def _share(self, now: float) -> None:
        """Share out the host's side anew among those that are on it, the narrowest own side first."""
        left = self._left
        on = [side for side in self._sides if left[side[1]] > 0]
        free, drives = self._free, sum([weight for _, _, weight in on])
        for own, group, weight in on:
            part = free / drives
            rate = self._rate[group] = own if own < part else part
            self._off[group] = now + left[group] / rate
            free -= rate * weight
            drives -= weight

    def _look_ahead(self) -> None:
        self.next_seconds = min(self._arrivals.next_seconds, min(self._off), min(self._prepared))

"""Pieces that one direction of the simulated link carries, and the protocol of whatever carries them."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple, Protocol

from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from firmware_agent.common.send_queue import Piece


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


class Arrivals:
    """Pieces that have been put on and arrive a latency later; those of one group in the order they went in."""

    def __init__(self, groups: int) -> None:
        """Begin with nothing under way."""
        self._heap: list[Carried] = []
        self._last = [0.0] * groups

    @property
    def next_seconds(self) -> float:
        """When the next one arrives; infinity if nothing is under way."""
        return self._heap[0].arrival_seconds if self._heap else math.inf

    def add(self, carried: Carried) -> None:
        """Add a piece; it arrives no earlier than the one before, if the latency has become shorter meanwhile."""
        last = self._last[carried.group]
        if carried.arrival_seconds < last:
            carried = carried._replace(arrival_seconds=last)
        self._last[carried.group] = carried.arrival_seconds
        heapq.heappush(self._heap, carried)

    def take(self, now: float) -> list[Carried]:
        """Return what has arrived by now and was not returned before."""
        arrived = []
        while self._heap and self._heap[0].arrival_seconds <= now:
            arrived.append(heapq.heappop(self._heap))
        return arrived

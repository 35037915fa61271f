"""One direction of a link that serves its drives in turns: a chunk of one, then a chunk of the next.

What a relay, a switch or a kernel's queue really does. Over a whole slice it comes to the equal parts of
`csd_emu.perfmodel.overlap.pipes`, but slices that are put on together end one after the other. So credit comes back to
each drive at a moment of its own, and drives that are alike may send different slices next: with equal parts they never
do.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

from csd_emu.perfmodel.overlap.carried import Arrivals, Carried
from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from firmware_agent.common.send_queue import Piece


class RoundRobinPipes:
    """The pipes of drives whose chunks of `SharedLink.turn_bytes` pass one after the other (a `Pipes`)."""

    def __init__(self, own: Sequence[OwnLink], link: SharedLink) -> None:
        """Begin empty; `own` is (drives,)."""
        self.next_seconds = math.inf
        self._own, self._link, self._turn_bytes = list(own), link, link.turn_bytes
        self._waiting: list[deque[Piece]] = [deque() for _ in own]
        # Of the piece at the head of each pipe: since when, how many bytes are left.
        self._begin, self._left = [0.0] * len(own), [0] * len(own)
        # (when, drive): whose next chunk is there to be served, earliest first; and those whose turn comes next.
        self._coming: list[tuple[float, int]] = []
        self._ring: deque[int] = deque()
        # Whose chunk passes, how large it is, and until when.
        self._served, self._chunk, self._until = -1, 0, math.inf
        self._arrivals = Arrivals(len(own))

    def put(self, group: int, piece: Piece, now: float) -> None:
        """See `Pipes`."""
        self._waiting[group].append(piece)
        if len(self._waiting[group]) == 1:
            self._begin_head(group, now)
            self._look_ahead()

    def advance(self, now: float) -> list[Carried]:
        """See `Pipes`."""
        while self._coming and self._coming[0][0] <= now:
            self._ring.append(heapq.heappop(self._coming)[1])
        if self._until <= now:
            self._end_turn(now)
        if self._until == math.inf and self._ring:
            self._begin_turn(now)
        arrived = self._arrivals.take(now)
        self._look_ahead()
        return arrived

    def change(self, link: SharedLink, now: float) -> None:
        """See `Pipes`; the chunk that passes ends as it would have, and turns stay as long as they were."""
        self._link = link

    def _begin_head(self, group: int, now: float) -> None:
        self._begin[group], self._left[group] = now, self._waiting[group][0].size_bytes
        cost = self._link.slice_seconds if self._left[group] else 0.0  # an acknowledgement is no slice
        heapq.heappush(self._coming, (now + cost, group))

    def _begin_turn(self, now: float) -> None:
        self._served = self._ring.popleft()
        self._chunk = min(self._turn_bytes, self._left[self._served])
        self._until = now + self._chunk / self._link.free_bytes_per_second

    def _end_turn(self, now: float) -> None:
        group, link, self._until = self._served, self._link, math.inf
        self._left[group] -= self._chunk
        # A drive's own side may be slower than its turns come.
        own = min(link.device_bytes_per_second, self._own[group].bytes_per_second)
        ready = now + max(0.0, self._chunk / own - self._chunk / link.free_bytes_per_second)
        if self._left[group] == 0:
            self._get_off(group, ready)
        elif ready > now:
            heapq.heappush(self._coming, (ready, group))
        else:
            self._ring.append(group)

    def _get_off(self, group: int, now: float) -> None:
        piece = self._waiting[group].popleft()
        latency = self._link.latency_seconds + self._own[group].latency_seconds
        self._arrivals.add(Carried(now + latency, self._begin[group], now, group, piece))
        if self._waiting[group]:
            self._begin_head(group, now)

    def _look_ahead(self) -> None:
        coming = self._coming[0][0] if self._coming else math.inf
        self.next_seconds = min(self._arrivals.next_seconds, self._until, coming)

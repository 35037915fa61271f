"""One direction of the link in one go: what is offered when is known ahead, and nothing is under way before.

What the real send queue and `csd_emu.perfmodel.overlap.pipes` say event by event, for
`csd_emu.perfmodel.overlap.steady_steps`, which says when that is enough. Here only what changes the rates is an event:
a piece begins or ends. Nothing that is sent this way hangs on an arrival; and what a queue has put on a pipe meanwhile
is worked out when the pipe has run empty, from what was offered and what was known to have been read at each moment.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from itertools import count

from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from firmware_agent.common.frames.frame_fields import MAX_EXCHANGE_BYTES
from firmware_agent.common.send_queue import TransferSettings

# Plain tuples, for there are tens of thousands of them in a decision.
Offer = tuple[float, int, int, int]
"""(seconds, order, start, end): bytes [start, end) of a tensor, ready then; `order` is of its first use."""
Arrival = tuple[float, float, float, int, int, int]
"""(seconds, begin seconds, end seconds, group, order, bytes) of a piece; sorted, they are as `Arrivals` takes them."""


class LinkFlow:
    """One direction of a link that neither changes nor serves in turns."""

    def __init__(
        self, weights: Sequence[int], own: Sequence[OwnLink], link: SharedLink, sending: TransferSettings
    ) -> None:
        """Look at the sides.

        Args:
            weights: (groups,) so many drives are sent, or send, the same at the same time.
            own: (groups,) what each of them has.
            link: what all share.
            sending: how the queues send.
        """
        self._sending, self._slices = sending, [link.slice_seconds + side.slice_seconds for side in own]
        self._weights, self._free = list(weights), link.bytes_per_second
        self._latencies = [link.latency_seconds + side.latency_seconds for side in own]
        self._rates = [side.bytes_per_second for side in own]
        # Whether each has the same rate all the time; else whether those on the link have equal parts all the time.
        wanted = sum(weight * rate for weight, rate in zip(weights, self._rates, strict=True))
        self._apart = len(own) == 1 or wanted <= self._free
        self._even = min(self._rates) * min(weights) >= self._free

    def carry(self, offers: Sequence[Sequence[Offer]]) -> list[Arrival]:
        """Return all pieces in the order of arrival; `offers` are (groups,) those of each group as they come."""
        each = zip(self._latencies, offers, strict=True)
        lanes = [_Lane(group, latency, self._sending, own) for group, (latency, own) in enumerate(each)]
        if self._apart:
            for lane, weight, rate, slice_seconds in zip(lanes, self._weights, self._rates, self._slices, strict=True):
                lane.carry_alone(min(rate, self._free / weight), slice_seconds)
        else:
            _Together(lanes, self._sharing(), self._slices).carry()
        return sorted([arrival for lane in lanes for arrival in lane.arrivals])

    def _sharing(self) -> EvenSharing | UnevenSharing:
        if self._even:
            return EvenSharing(self._weights, self._free)
        return UnevenSharing(self._weights, self._free, self._rates)


class _Lane:
    """One group: what it is offered, its queue, its pipe, what it knows to have been read.

    Attributes:
        waiting: (order, bytes) in the pipe, in the order in which they were put on; the first one is carried.
        begin_seconds: since when the first one is carried.
        arrivals: of all that has been carried.
    """

    __slots__ = (
        *("_at", "_credit", "_fifo", "_group", "_known", "_latency_seconds", "_offers", "_queued", "_slice"),
        *("arrivals", "begin_seconds", "waiting"),
    )

    def __init__(self, group: int, latency_seconds: float, sending: TransferSettings, offers: Sequence[Offer]) -> None:
        """Begin before the first offer."""
        self._group, self._latency_seconds = group, latency_seconds
        self._offers, self._at = [*offers, (math.inf, 0, 0, 0)], 0
        self._fifo, self._slice = sending.schedule == "fifo", sending.slice_bytes or MAX_EXCHANGE_BYTES
        self._credit = sending.credit_bytes or 1 << 62
        # Heap of (rank, start, end, order), as `firmware_agent.common.send_queue.SendQueue` has it.
        self._queued: list[tuple[int, int, int, int]] = []
        # (seconds, bytes): when it will be known that they were read.
        self._known: deque[tuple[float, int]] = deque()
        self.waiting: deque[tuple[int, int]] = deque()
        self.begin_seconds, self.arrivals = 0.0, list[Arrival]()

    def next_seconds(self) -> float:
        """Return when the queue may put something on next, while nothing is carried; infinity for never."""
        offered = self._offers[self._at][0]
        return self._known[0][0] if self._queued and self._known[0][0] < offered else offered

    def catch_up(self, now: float) -> None:
        """Let the queue put on what it has, from moment to moment: nothing may overtake what was put on before."""
        known, queued, offers = self._known, self._queued, self._offers
        while True:
            moment = offers[self._at][0]
            if queued and known and known[0][0] < moment:
                moment = known[0][0]
            if moment > now:
                return
            while known and known[0][0] <= moment:
                self._credit += known.popleft()[1]
            while offers[self._at][0] <= moment and moment < math.inf:
                self._take_offer()
            while queued and self._credit > 0:
                self._put_on()

    def _take_offer(self) -> None:
        _, order, start, end = self._offers[self._at]
        if start < end:
            heapq.heappush(self._queued, (self._at if self._fifo else order, start, end, order))
        self._at += 1

    def _put_on(self) -> None:
        """Put on what ranks first: up to the next multiple of the slice, ranges that follow each other in one."""
        queued = self._queued
        rank, start, last, order = heapq.heappop(queued)
        end = start - start % self._slice + self._slice
        while last < end and queued and queued[0][0] == rank and queued[0][1] == last:
            last = heapq.heappop(queued)[2]
        if end < last:
            heapq.heappush(queued, (rank, end, last, order))
        else:
            end = last
        self._credit -= end - start
        self.waiting.append((order, end - start))

    def get_off(self, now: float) -> None:
        """Have the piece at the head carried; when it arrives and is known to have been read hangs on nothing else."""
        order, size_bytes = self.waiting.popleft()
        arrival = now + self._latency_seconds
        self.arrivals.append((arrival, self.begin_seconds, now, self._group, order, size_bytes))
        self._known.append((arrival + self._latency_seconds, size_bytes))
        if not self.waiting:
            self.catch_up(now)

    def carry_alone(self, rate: float, slice_seconds: float) -> None:
        """Carry all that is offered, at the same rate all the time."""
        while (now := self.next_seconds()) < math.inf:
            self.catch_up(now)
            while self.waiting:
                self.begin_seconds = now
                now += slice_seconds + self.waiting[0][1] / rate
                self.get_off(now)


class _Together:
    """The pipes of groups that share the host's side."""

    def __init__(
        self, lanes: Sequence[_Lane], sharing: EvenSharing | UnevenSharing, slice_seconds: Sequence[float]
    ) -> None:
        self._lanes, self._sharing, self._slice_seconds = lanes, sharing, slice_seconds
        # (when, turn, group): whose piece is prepared then; (when, group): whose empty pipe may carry something then.
        self._prepared: list[tuple[float, int, int]] = []
        self._turns = count()
        self._idle = [(lane.next_seconds(), group) for group, lane in enumerate(lanes)]
        heapq.heapify(self._idle)

    def carry(self) -> None:
        """Carry all that is offered."""
        lanes, prepared, idle, sharing = self._lanes, self._prepared, self._idle, self._sharing
        while True:
            ends = sharing.next_seconds
            begins = prepared[0][0] if prepared else math.inf
            if idle and idle[0][0] <= begins and idle[0][0] <= ends:
                now, group = heapq.heappop(idle)
                if now == math.inf:
                    return
                lanes[group].catch_up(now)
                self._begin(group, now)
            elif ends <= begins:
                for group in sharing.end():
                    lanes[group].get_off(ends)
                    self._begin(group, ends)
            else:
                group = heapq.heappop(prepared)[-1]
                sharing.begin(group, lanes[group].waiting[0][1], begins)

    def _begin(self, group: int, now: float) -> None:
        """Begin with a group's next piece; without any, with its next offer."""
        lane = self._lanes[group]
        if lane.waiting:
            lane.begin_seconds = now
            heapq.heappush(self._prepared, (now + self._slice_seconds[group], next(self._turns), group))
        else:
            heapq.heappush(self._idle, (lane.next_seconds(), group))


class EvenSharing:
    """Equal parts: no drive's own side is ever narrower than its part of the host's.

    `next_seconds` is when the next piece will have been carried.

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
        """Begin with a piece of a group that has none on the link, not after `next_seconds`."""
        on = self._on
        if on:
            self._level += (now - self._now) * self._free / self._drives
        self._now = now
        heapq.heappush(on, (self._level + size_bytes, group))
        self._drives += self._weights[group]
        self.next_seconds = now + (on[0][0] - self._level) * self._drives / self._free

    def end(self) -> list[int]:
        """Go on to `next_seconds`; return the groups whose pieces have been carried by then."""
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
        """See `EvenSharing`."""
        self._carry(now)
        self._left[group] = size_bytes
        self._share()

    def end(self) -> list[int]:
        """See `EvenSharing`."""
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

"""Steps over a link of equal parts, event by event at every drive: slow, and simple to believe.

What `csd_emu.perfmodel.overlap.steady_steps` says must be what comes of this. The real send queue stands at both ends
of each drive's pipes; of what happens at one moment arrivals come first, then the host, passes and the cut, and then
all queues send.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from csd_emu.perfmodel.overlap.simulated_link import OwnLink, SharedLink
from csd_emu.perfmodel.overlap.steady_steps import ExchangeModel, Passes
from csd_emu.perfmodel.overlap.stepped_ranges import HostBlocks
from firmware_agent.common.send_queue import Piece, SendQueue

PUSH, PULL = 0, 1


@dataclass(frozen=True)
class Drive:
    """One drive; of a model that is cut, the bytes that cross."""

    passes: Passes
    own: OwnLink
    push_bytes: int = 0
    pull_bytes: int = 0


class EveryEvent:
    """Steps one after the other, for `settle` too."""

    repeats = False

    def __init__(
        self,
        drives: Sequence[Drive],
        link: SharedLink,
        exchange: ExchangeModel,
        *,
        local: Passes | None = None,
        turn_seconds: float = 0.0,
    ) -> None:
        self._drives, self._link, self._tail_seconds = drives, link, turn_seconds
        self._cut = any(drive.push_bytes for drive in drives)
        passes = [*(drive.passes for drive in drives), *([local] if local is not None else [])]
        self.layers = len(exchange.sizes)
        self._orders, order = list[list[int]](), 0
        for own in exchange.sizes:
            self._orders.append(list(range(order, order := order + len(own))))
        self._sizes = [size for own in exchange.sizes for size in own]
        self._layer_of = [layer for layer, orders in enumerate(self._orders) for _ in orders]
        self._whole = exchange.sending.schedule == "fifo"
        self._computing = [Computing(each, list(map(sum, exchange.sizes)), self._cut) for each in passes]
        self._queues = tuple([SendQueue(exchange.sending) for _ in drives] for _ in (PUSH, PULL))
        self._pipes = tuple(EqualPipes([drive.own for drive in drives], link) for _ in (PUSH, PULL))
        self._host = HostBlocks(self._sizes, len(passes), exchange.stepping)
        # (when it is known that they were read, direction, drive, bytes).
        self._known: list[tuple[float, int, int, int]] = []
        self._pushed, self._pulled = [0] * len(drives), [0] * len(drives)
        self._turned_seconds = math.inf
        self._steps = 0

    def step(self) -> float:
        """Go on until all have begun the next step; return the seconds since they had begun this one."""
        before = max(each.begun[self._steps] for each in self._computing)
        self._steps += 1
        while any(len(each.begun) <= self._steps for each in self._computing):
            self._advance()
        return max(each.begun[self._steps] for each in self._computing) - before

    def _advance(self) -> None:
        moments = [each.until for each in self._computing] + [each[0] for each in self._known]
        now = min(*moments, *(pipes.next_seconds() for pipes in self._pipes), self._host.next_seconds)
        now = min(now, self._turned_seconds)
        assert now < math.inf
        self._take(PUSH, now)
        for ready in self._host.advance(now):
            for queue in self._queues[PULL]:
                queue.offer(0, ready.order, "", ready.start, ready.end)
            for each in self._computing[len(self._drives) :]:
                each.take(self._layer_of[ready.order], ready.end - ready.start, now)
        self._take(PULL, now)
        for number, each in enumerate(self._computing):
            self._end_passes(number, each, now)
        if self._cut:
            self._cross(now)
        self._send(now)

    def _end_passes(self, number: int, computing: "Computing", now: float) -> None:
        for _ in range(2 * self.layers):
            if computing.until <= now and (layer := computing.end(now)) is not None:
                self._offer_gradients(number, layer, now)

    def _send(self, now: float) -> None:
        for known in [known for known in self._known if known[0] <= now]:
            self._known.remove(known)
            self._queues[known[1]][known[2]].acknowledge(known[3])
        for queues, pipes in zip(self._queues, self._pipes, strict=True):
            for drive, queue in enumerate(queues):
                while (piece := queue.next()) is not None:
                    pipes.put(drive, piece, now)

    def _take(self, direction: int, now: float) -> None:
        for drive, piece in self._pipes[direction].advance(now):
            back = self._link.latency_seconds + self._drives[drive].own.latency_seconds
            self._known.append((now + back, direction, drive, piece.size_bytes))
            if piece.order == len(self._sizes):
                crossed = (self._pushed, self._pulled)[direction]
                crossed[drive] += piece.size_bytes
                if direction == PULL and crossed[drive] == self._drives[drive].pull_bytes:
                    crossed[drive] = 0
                    self._computing[drive].turn(now)
            elif direction == PUSH:
                self._host.take(drive, piece.order, piece.size_bytes, self._whole, now)
            else:
                self._computing[drive].take(self._layer_of[piece.order], piece.size_bytes, now)

    def _offer_gradients(self, number: int, layer: int, now: float) -> None:
        for order in reversed(self._orders[layer]):
            if number < len(self._drives):
                self._queues[PUSH][number].offer(0, order, "", 0, self._sizes[order])
            else:
                self._host.take(number, order, self._sizes[order], self._whole, now)

    def _cross(self, now: float) -> None:
        for number, (drive, each) in enumerate(zip(self._drives, self._computing, strict=False)):
            if each.turning and not each.offered:
                each.offered = True
                self._queues[PUSH][number].offer(0, len(self._sizes), "", 0, drive.push_bytes)
        wanted = [drive.push_bytes for drive in self._drives]
        if all(each.turning for each in self._computing) and self._pushed == wanted:
            self._pushed = [0] * len(wanted)
            self._turned_seconds = now + self._tail_seconds
        if self._turned_seconds <= now:
            self._turned_seconds = math.inf
            for number, drive in enumerate(self._drives):
                self._queues[PULL][number].offer(0, len(self._sizes), "", 0, drive.pull_bytes)
            for each in self._computing[len(self._drives) :]:
                each.turn(now)


class Computing:
    """What one device computes: a layer's forward pass waits until nothing of the layer's parameters is missing."""

    def __init__(self, passes: Passes, sizes: Sequence[int], cut: bool) -> None:
        self._seconds = [*passes.forward_seconds, *passes.backward_seconds[::-1]]
        self._sizes, self._missing, self._cut, self._at = sizes, [0] * len(sizes), cut, 0
        self.begun, self.until = [0.0], self._seconds[0]
        self.turning = self.offered = False

    def end(self, now: float) -> int | None:
        """End what is computed, go on, and return the layer whose gradients are ready, if any."""
        at, layers, layer = self._at, len(self._sizes), None
        if at >= layers:
            layer = 2 * layers - 1 - at
            self._missing[layer] = self._sizes[layer]
        self._at = (at + 1) % (2 * layers)
        self._go_on(now)
        return layer

    def take(self, layer: int, size_bytes: int, now: float) -> None:
        self._missing[layer] -= size_bytes
        if layer == self._at and self.until == math.inf:
            self._go_on(now)

    def turn(self, now: float) -> None:
        self.turning = self.offered = False
        self.until = now + self._seconds[self._at]

    def _go_on(self, now: float) -> None:
        at = self._at
        self.until = math.inf
        if at < len(self._sizes) and self._missing[at]:
            return
        if at == len(self._sizes) and self._cut:
            self.turning = True
            return
        if at == 0:
            self.begun.append(now)
        self.until = now + self._seconds[at]


class EqualPipes:
    """One direction of the link: a pipe for each drive; those whose bytes are under way share the host's side."""

    def __init__(self, own: Sequence[OwnLink], link: SharedLink) -> None:
        self._link, self._now = link, 0.0
        self._latencies = [link.latency_seconds + each.latency_seconds for each in own]
        self._own = [each.bytes_per_second for each in own]
        self._waiting: list[deque[Piece]] = [deque() for _ in own]
        self._prepared, self._off = [math.inf] * len(own), [math.inf] * len(own)
        self._left, self._rate = [0.0] * len(own), [0.0] * len(own)
        self._arrivals: list[tuple[float, int, Piece]] = []

    def next_seconds(self) -> float:
        return min([*self._prepared, *self._off, *(each[0] for each in self._arrivals)])

    def put(self, drive: int, piece: Piece, now: float) -> None:
        self._waiting[drive].append(piece)
        if len(self._waiting[drive]) == 1:
            self._prepared[drive] = now + self._link.slice_seconds

    def advance(self, now: float) -> list[tuple[int, Piece]]:
        for drive, off in enumerate(self._off):
            if off < math.inf:
                self._left[drive] -= self._rate[drive] * (now - self._now)
            if off <= now:
                self._left[drive], self._off[drive] = 0.0, math.inf
                self._arrivals.append((now + self._latencies[drive], drive, self._waiting[drive].popleft()))
                if self._waiting[drive]:
                    self._prepared[drive] = now + self._link.slice_seconds
            if self._prepared[drive] <= now:
                self._prepared[drive], self._left[drive] = math.inf, self._waiting[drive][0].size_bytes
        self._now = now
        self._share()
        arrived = sorted(each for each in self._arrivals if each[0] <= now)
        self._arrivals = [each for each in self._arrivals if each[0] > now]
        return [(drive, piece) for _, drive, piece in arrived]

    def _share(self) -> None:
        """Share the host's side out in equal parts; what a drive cannot take of its part the others get."""
        on = sorted((self._own[drive], drive) for drive, left in enumerate(self._left) if left > 0)
        free, drives = self._link.bytes_per_second, len(on)
        for own, drive in on:
            self._rate[drive] = min(own, free / drives)
            self._off[drive] = self._now + self._left[drive] / self._rate[drive]
            free -= self._rate[drive]
            drives -= 1

"""Steps over a link that serves its drives in turns, event by event: a chunk of one, then a chunk of the next.

What a relay, a switch or a kernel's queue really does. Over a whole slice it comes to equal parts, but slices that are
put on together end one after the other. So credit comes back to each drive at a moment of its own, and drives that are
alike may send different slices next: with equal parts they never do. And what a sender is told of its slices goes
through the pipe the other way, behind what is under way there. So neither direction can be worked out without the
other, as `csd_emu.perfmodel.overlap.steady_steps` does. Here the real send queue (`firmware_agent.common.send_queue`)
stands at both ends, and everything that happens anywhere is one event after the other:

* A drive computes one thing at a time: the forward pass from the first layer to the last, then the backward pass from
  the last to the first. A layer's gradients are offered to the drive's queue when its backward pass ends.
* A drive's queue puts pieces on its pipe to the host while it has credit. The pipe carries one piece at a time:
  `slice_seconds` at the side that puts it on, then its bytes, then the latency, during which the next one is carried.
* The host steps blocks as soon as every drive's bytes of one are in (`HostBlocks`). What it has stepped it offers to
  the queue of every drive, which works in the same way.
* A layer's next forward pass waits for that layer's parameters alone. There is no other barrier.

Paper: Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP
2019. A slice takes theta + size / B (algorithms 6.2 of the design notes).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from csd_emu.perfmodel.overlap.layer_work import Costs, compute_seconds, exchange_bytes, number_tensors
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.steady_steps import settle, steady_step_seconds
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES, BlockStepping, HostBlocks
from firmware_agent.common.errors import ConfigurationError, ProtocolError
from firmware_agent.common.send_queue import Piece, SendQueue, TransferSettings

PUSH, PULL = 0, 1
# In a piece's place of an exchange: it says that the slice was read whose bytes are its offset, and is no slice itself.
_ACKNOWLEDGES = -1


@dataclass(frozen=True)
class TurnLink(SharedLink):
    """A link that serves its drives one after the other; none of them has a narrower side of its own.

    Attributes:
        turn_bytes: so many at a time. Very short turns come to equal parts, but for drives that then never differ.
    """

    turn_bytes: int = field(kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what no link has."""
        super().__post_init__()
        if self.turn_bytes < 1:
            raise ConfigurationError(f"the link: turns of {self.turn_bytes} bytes; give 1 at least")


def ideal_step_seconds(costs: Sequence[Costs], bytes_per_second: float) -> float:
    """Return what no schedule can beat: the longest drive's compute, or all bytes over the host's side of the link."""
    return max(sum(map(exchange_bytes, costs)) / bytes_per_second, max(map(compute_seconds, costs), default=0.0))


def step_seconds(
    costs: Sequence[Costs], link: SharedLink, sending: TransferSettings, *, block_bytes: int = BLOCK_BYTES
) -> float:
    """Return what a step takes once steps repeat, over turns or equal parts (see `steady_step_seconds`)."""
    if isinstance(link, TurnLink):
        return settle(TurnSimulation(costs, link, sending, block_bytes))
    return steady_step_seconds(costs, link, sending, block_bytes=block_bytes)


class TurnSimulation:
    """Steps one after the other; the drives begin with all parameters, so the first ones differ from the others."""

    repeats = False

    def __init__(
        self,
        costs: Sequence[Costs],
        link: TurnLink,
        sending: TransferSettings,
        block_bytes: int = BLOCK_BYTES,
        late: Callable[[], float] | None = None,
    ) -> None:
        """Begin at 0.

        Args:
            costs: one per drive, of one model.
            link: that all share; its `turn_bytes` pass at a time.
            sending: how the queues send.
            block_bytes: the host steps ranges of so many bytes.
            late: by how many seconds a drive's pass ends too late, asked anew for each pass that takes time; it does
                not add up, for the next pass is due as if this one had ended in time. None for never.

        Raises:
            ConfigurationError: there is no drive or no layer, or the drives' models differ.
        """
        self._orders, self._sizes = number_tensors(costs)
        self._layer_of = [layer for layer, orders in enumerate(self._orders) for _ in orders]
        self._drives = [_Drive(part, late) for part in costs]
        self._pipes = tuple(RoundRobinPipes(len(costs), link) for _ in (PUSH, PULL))
        self._queues = tuple([SendQueue(sending) for _ in costs] for _ in (PUSH, PULL))
        self._host = HostBlocks(self._sizes, len(costs), BlockStepping(block_bytes))
        self._whole = sending.schedule == "fifo"
        self._wakes: list[tuple[int, int]] = []
        self._steps = 0

    def step(self) -> float:
        """Go on until all drives have begun the next step; return the seconds since they had begun this one."""
        before = max(drive.begun_seconds for drive in self._drives)
        self._steps += 1
        while any(drive.steps < self._steps for drive in self._drives):
            self._advance()
        return max(drive.begun_seconds for drive in self._drives) - before

    def _advance(self) -> None:
        """Go on to the next moment in which anything happens, do all of it, then let the queues send."""
        computing = [drive.until_seconds for drive in self._drives]
        now = min(*computing, *(pipes.next_seconds for pipes in self._pipes), self._host.next_seconds)
        if now == math.inf:  # no settings lead here; better an end than a loop without one
            raise ProtocolError("a drive waits for parameters, and nothing is under way or left to be sent")
        self._arrive(PUSH, now)
        for ready in self._host.advance(now):
            for drive, queue in enumerate(self._queues[PULL]):
                queue.offer(0, ready.order, str(ready.order), ready.start, ready.end)
                self._wakes.append((PULL, drive))
        self._arrive(PULL, now)
        self._compute(now)
        for direction, drive in self._wakes:
            while (piece := self._queues[direction][drive].next()) is not None:
                self._pipes[direction].put(drive, piece, now)
        self._wakes.clear()

    def _arrive(self, direction: int, now: float) -> None:
        """Let the host take gradients, or drives parameters; have each sender told what was read."""
        for drive, piece in self._pipes[direction].advance(now):
            back = 1 - direction
            if piece.exchange == _ACKNOWLEDGES:
                self._queues[back][drive].acknowledge(piece.offset)
                self._wakes.append((back, drive))
                continue
            if direction == PUSH:
                self._host.take(drive, piece.order, piece.size_bytes, self._whole, now)
            else:
                self._drives[drive].arrive(self._layer_of[piece.order], piece.size_bytes, now)
            self._pipes[back].put(drive, Piece(_ACKNOWLEDGES, -1, piece.size_bytes, 0, ""), now)

    def _compute(self, now: float) -> None:
        """End the passes that end now; those that take no time with them, for all of it is offered at once."""
        for number, drive in enumerate(self._drives):
            left = 2 * drive.layers
            while drive.until_seconds <= now and left:
                left -= 1
                if (layer := drive.end(now)) is None:
                    continue
                for order in reversed(self._orders[layer]):
                    self._queues[PUSH][number].offer(0, order, str(order), 0, self._sizes[order])
                self._wakes.append((PUSH, number))


class RoundRobinPipes:
    """One direction of the link: a pipe for each drive, whose chunks pass one after the other.

    Pieces come out of a pipe in the order they went in. `next_seconds` is when something happens next, infinity if
    nothing does.
    """

    def __init__(self, drives: int, link: TurnLink) -> None:
        """Begin empty."""
        self.next_seconds = math.inf
        self._link = link
        self._waiting: list[deque[Piece]] = [deque() for _ in range(drives)]
        # Of the piece at the head of each pipe, how many bytes are left.
        self._left = [0] * drives
        # (when, drive): whose next chunk is there to be served, earliest first; and those whose turn comes next.
        self._coming: list[tuple[float, int]] = []
        self._ring: deque[int] = deque()
        # Whose chunk passes, how large it is, and until when.
        self._served, self._chunk, self._until = -1, 0, math.inf
        # (arrival, drive, piece) of what has been put on.
        self._under_way: deque[tuple[float, int, Piece]] = deque()

    def put(self, drive: int, piece: Piece, now: float) -> None:
        """Add a piece behind those that are in the drive's pipe."""
        self._waiting[drive].append(piece)
        if len(self._waiting[drive]) == 1:
            self._begin_head(drive, now)
            self._look_ahead()

    def advance(self, now: float) -> list[tuple[int, Piece]]:
        """Go on to `now`, which is not after `next_seconds`; return (drive, piece) of what has arrived by then."""
        arrived: list[tuple[int, Piece]] = []
        if self.next_seconds > now:
            return arrived
        while self._coming and self._coming[0][0] <= now:
            self._ring.append(heapq.heappop(self._coming)[1])
        if self._until <= now:
            self._end_turn(now)
        if self._until == math.inf and self._ring:
            self._served = self._ring.popleft()
            self._chunk = min(self._link.turn_bytes, self._left[self._served])
            self._until = now + self._chunk / self._link.bytes_per_second
        while self._under_way and self._under_way[0][0] <= now:
            _, drive, piece = self._under_way.popleft()
            arrived.append((drive, piece))
        self._look_ahead()
        return arrived

    def _begin_head(self, drive: int, now: float) -> None:
        self._left[drive] = self._waiting[drive][0].size_bytes
        cost = self._link.slice_seconds if self._left[drive] else 0.0  # an acknowledgement is no slice
        heapq.heappush(self._coming, (now + cost, drive))

    def _end_turn(self, now: float) -> None:
        drive, self._until = self._served, math.inf
        self._left[drive] -= self._chunk
        if self._left[drive]:
            self._ring.append(drive)
            return
        self._under_way.append((now + self._link.latency_seconds, drive, self._waiting[drive].popleft()))
        if self._waiting[drive]:
            self._begin_head(drive, now)

    def _look_ahead(self) -> None:
        heads = (each[0][0] for each in (self._coming, self._under_way) if each)
        self.next_seconds = min([self._until, *heads])


class _Drive:
    """One thing at a time; a layer's forward pass waits until nothing of the layer's parameters is missing.

    Attributes:
        layers: of the model.
        steps: how many forward passes it has begun, but for the first.
        begun_seconds: when it began the last of them.
        until_seconds: when what is computed now ends; infinity while the drive waits.
    """

    def __init__(self, costs: Costs, late: Callable[[], float] | None) -> None:
        """Begin at 0 with all parameters there; `late` as for `TurnSimulation`."""
        backward = [layer.backward_seconds for layer in costs]
        self._seconds = [layer.forward_seconds for layer in costs] + backward[::-1]
        self._sizes, self._missing = [layer.size_bytes for layer in costs], [0] * len(costs)
        self._late, self._at = late, 0
        self.layers, self.steps, self.begun_seconds = len(costs), 0, 0.0
        # When what is computed now should end.
        self.until_seconds = self._due = self._seconds[0]

    def end(self, now: float) -> int | None:
        """End what is computed, and go on if that need not wait; return the layer whose gradients are ready, if any."""
        at, layer = self._at, None
        if at >= self.layers:
            layer = 2 * self.layers - 1 - at
            self._missing[layer] = self._sizes[layer]
        self._at = at + 1 if at + 1 < 2 * self.layers else 0
        self._go_on(now)
        return layer

    def arrive(self, layer: int, size_bytes: int, now: float) -> None:
        """Take so many bytes of a layer's new parameters."""
        self._missing[layer] -= size_bytes
        if layer == self._at and self.until_seconds == math.inf:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        at = self._at
        if at < self.layers and self._missing[at]:
            self.until_seconds = self._due = math.inf
            return
        if at == 0:
            self.steps, self.begun_seconds = self.steps + 1, now
        seconds = self._seconds[at]
        self.until_seconds = now + seconds
        if self._late is not None and seconds:
            self._due = min(now, self._due) + seconds
            self.until_seconds = max(now, self._due + self._late())

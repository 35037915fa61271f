"""World of `bench bytescheduler_world`: every slice on its way, event by event. Simulated seconds.

It shares no code with `csd_emu.perfmodel` or the product's send queue, and has what these leave out:

* a slice costs the drive's one processor for messages its seconds when it is sent and when it is read, and the host's
  one, which serves all drives in turn, a part of that;
* the link carries packets, one after the other: those of a drive in order, those of drives in turns. A drive's own side
  comes before the shared one, or behind it, and is narrower or wider;
* a slice is made ready only while less than a buffer's bytes wait for the link, whatever the credit.

What they have in common is what docs/communication.md promises: the slice that the next forward pass needs first goes
first; it leaves while less than the credit is unread; the host steps a block of a tensor when it has it of every drive;
a layer's forward pass waits for that layer's parameters and for nothing else.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from csd_lab.bench.communication.bytescheduler.drawn_cases import WorldLayer

# What the link carries before it is another drive's turn: the size of a segment that a kernel hands on at once.
PACKET_BYTES = 64 << 10
# The host steps a tensor in so many blocks at most, of this size or a power of two times as large.
BLOCK_BYTES, MOST_BLOCKS = 16 << 10, 64
# Steps before the first that counts, and those that count.
_WARM, _COUNTED = 1, 2

Then = Callable[[], None]


@dataclass(frozen=True, order=True)
class Setting:
    """How slices leave.

    Attributes:
        slice_bytes: a layer's bytes are cut at multiples of this.
        credit_bytes: another slice leaves while fewer bytes than that are unread.
    """

    slice_bytes: int
    credit_bytes: int


class LinkWorld(Protocol):
    """A model on drives behind a shared link."""

    @property
    def layers(self) -> tuple[WorldLayer, ...]:
        """Return the layers in the order of the forward pass."""

    @property
    def slowdowns(self) -> tuple[float, ...]:
        """Return how much longer each drive computes, (drives,)."""

    @property
    def shared_bytes_per_second(self) -> float:
        """Return what the host's side carries each way, shared by all drives."""

    @property
    def latency_seconds(self) -> float:
        """Return that of whatever is sent, one way."""

    @property
    def host_slice_seconds(self) -> float:
        """Return what a slice of any drive costs the host's processor."""

    @property
    def buffer_bytes(self) -> int:
        """Return what may wait for a drive's own side before another slice is made ready."""

    def own_of(self, drive: int) -> float:
        """Return the bytes per second of a drive's side, each way."""

    def slice_seconds_of(self, drive: int) -> float:
        """Return what a slice costs a drive's processor."""


class CarriedSlice(NamedTuple):
    """A slice that was read: pushed, or else pulled.

    It begins when it leaves the queue, and ends when the host knows that it was read.
    """

    drive: int
    push: bool
    size_bytes: int
    begin_seconds: float
    end_seconds: float


class _Clock:
    """Events in order of time; of one moment in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._asked = 0

    def after(self, seconds: float, then: Then) -> None:
        self._asked += 1
        heapq.heappush(self._events, (self.now + seconds, self._asked, then))

    def run(self, done: Callable[[], bool]) -> None:
        while self._events and not done():
            self.now, _, then = heapq.heappop(self._events)
            then()


class _Server:
    """Does one job after the other, those of its customers in turns."""

    def __init__(self, clock: _Clock, customers: int) -> None:
        self._clock = clock
        self._waiting: list[deque[tuple[float, Then]]] = [deque() for _ in range(customers)]
        self._turns: deque[int] = deque()
        self._busy = False

    def serve(self, customer: int, seconds: float, then: Then) -> None:
        if not self._waiting[customer]:
            self._turns.append(customer)
        self._waiting[customer].append((seconds, then))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._turns)
        if not self._busy:
            return
        customer = self._turns.popleft()
        waiting = self._waiting[customer]
        seconds, then = waiting.popleft()
        if waiting:
            self._turns.append(customer)
        self._clock.after(seconds, partial(self._end, then))

    def _end(self, then: Then) -> None:
        self._next()
        then()


class _Path:
    """One direction between the host and one drive, with the sender's queue at its beginning."""

    def __init__(self, run: _Run, drive: int, sides: tuple[tuple[_Server, int, float], ...], push: bool) -> None:
        """Begin empty.

        Args:
            run: the run.
            drive: its number.
            sides: (server, this drive's place there, bytes per second) of the two links in the order of the direction.
            push: whether the drive sends.
        """
        self._run, self._drive, self._sides, self._push = run, drive, sides, push
        # Of each layer the ranges that wait, in order of their bytes; and the layers that have any.
        self._ranges: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        self._ready: list[tuple[int, int]] = []
        self._unread = self._unsent = 0
        self._encoding = False
        # (bytes, seconds) of slices that have left and whose end is not known.
        self._left: deque[tuple[int, float]] = deque()

    def offer(self, step: int, layer: int, start: int, end: int) -> None:
        key = step, layer
        if key not in self._ranges:
            self._ranges[key] = deque()
            heapq.heappush(self._ready, key)
        self._ranges[key].append((start, end))
        self._send()

    def _send(self) -> None:
        """Take the most urgent slice, if there is one, credit for it, and room in the buffer."""
        run = self._run
        if self._encoding or not self._ready or self._unread >= run.setting.credit_bytes:
            return
        if self._unsent >= run.case.buffer_bytes:
            return
        step, layer = self._ready[0]
        size = self._cut(step, layer)
        self._unread += size
        self._unsent += size
        self._encoding = True
        self._left.append((size, run.clock.now))
        sender, customer, seconds = run.processor(self._drive, self._push)
        sender.serve(customer, seconds, partial(self._encoded, layer, size))

    def _cut(self, step: int, layer: int) -> int:
        """Take what waits of a layer up to the next multiple of the slice size; return its bytes."""
        ranges, slice_bytes = self._ranges[step, layer], self._run.setting.slice_bytes
        start, end = ranges.popleft()
        limit = (start // slice_bytes + 1) * slice_bytes
        while ranges and end < limit and ranges[0][0] == end:
            end = ranges.popleft()[1]
        if end > limit:
            ranges.appendleft((limit, end))
            end = limit
        if not ranges:
            heapq.heappop(self._ready)
            del self._ranges[step, layer]
        return end - start

    def _encoded(self, layer: int, size: int) -> None:
        left = size
        first, customer, rate = self._sides[0]
        while left > 0:
            part = min(PACKET_BYTES, left)
            left -= part
            first.serve(customer, part / rate, partial(self._half_way, layer, part, size if left == 0 else 0))
        self._encoding = False
        self._send()

    def _half_way(self, layer: int, part: int, last: int) -> None:
        if self._push:
            self._sent(part)
        second, customer, rate = self._sides[1]
        second.serve(customer, part / rate, partial(self._carried, layer, part, last))

    def _carried(self, layer: int, part: int, last: int) -> None:
        if not self._push:
            self._sent(part)
        if last:
            self._run.clock.after(self._run.case.latency_seconds, partial(self._arrived, layer, last))

    def _sent(self, part: int) -> None:
        self._unsent -= part
        self._send()

    def _arrived(self, layer: int, size: int) -> None:
        reader, customer, seconds = self._run.processor(self._drive, not self._push)
        reader.serve(customer, seconds, partial(self._read, layer, size))

    def _read(self, layer: int, size: int) -> None:
        self._run.clock.after(self._run.case.latency_seconds, partial(self._acknowledged, size))
        if self._push:
            self._end()
            self._run.host_reads(self._drive, layer, size)
        else:
            self._run.drive_reads(self._drive, layer, size)

    def _acknowledged(self, size: int) -> None:
        self._unread -= size
        if not self._push:
            self._end()
        self._send()

    def _end(self) -> None:
        size, begin = self._left.popleft()
        self._run.carried.append(CarriedSlice(self._drive, self._push, size, begin, self._run.clock.now))


class _Drive:
    """What one drive computes: forward and backward passes of one step after the other."""

    def __init__(self, run: _Run, number: int) -> None:
        self._run, self._number, self._factor = run, number, run.case.slowdowns[number]
        self._missing = [0] * len(run.case.layers)
        self._layer, self._waits = 0, False
        self.step = 0
        self.begun: list[float] = []

    def begin(self) -> None:
        self.step += 1
        self.begun.append(self._run.clock.now)
        self._forward(0)

    def read(self, layer: int, size: int) -> None:
        self._missing[layer] -= size
        if self._waits and self._layer == layer and not self._missing[layer]:
            self._waits = False
            self._forward(layer)

    def _forward(self, layer: int) -> None:
        layers = self._run.case.layers
        if layer == len(layers):
            self._backward(layer - 1)
        elif self._missing[layer]:
            self._layer, self._waits = layer, True
        else:
            self._run.clock.after(self._factor * layers[layer].forward_seconds, partial(self._forward, layer + 1))

    def _backward(self, layer: int) -> None:
        seconds = self._factor * self._run.case.layers[layer].backward_seconds
        self._run.clock.after(seconds, partial(self._backward_done, layer))

    def _backward_done(self, layer: int) -> None:
        size = self._run.case.layers[layer].size_bytes
        self._missing[layer] = size
        self._run.pushes[self._number].offer(self.step, layer, 0, size)
        if layer:
            self._backward(layer - 1)
        else:
            self.begin()


class _Run:
    """Drives that go on and on with one setting."""

    def __init__(self, case: LinkWorld, setting: Setting) -> None:
        self.case, self.setting, self.clock = case, setting, _Clock()
        self.carried: list[CarriedSlice] = []
        count = len(case.slowdowns)
        # Of each drive, and behind them the host's.
        self._processors = [*(_Server(self.clock, 2) for _ in range(count)), _Server(self.clock, 2 * count)]
        up, down = (_Server(self.clock, count) for _ in range(2))
        shared = case.shared_bytes_per_second
        self.pushes, self._pulls = list[_Path](), list[_Path]()
        for drive in range(count):
            own = case.own_of(drive)
            push = (_Server(self.clock, 1), 0, own), (up, drive, shared)
            pull = (down, drive, shared), (_Server(self.clock, 1), 0, own)
            self.pushes.append(_Path(self, drive, push, True))
            self._pulls.append(_Path(self, drive, pull, False))
        self._blocks = [_block_bytes(layer.size_bytes) for layer in case.layers]
        self._got = [[0] * count for _ in case.layers]
        self._stepped = [0] * len(case.layers)
        self._steps = [1] * len(case.layers)
        self.drives = [_Drive(self, number) for number in range(count)]

    def processor(self, drive: int, at_drive: bool) -> tuple[_Server, int, float]:
        """Return the server, the customer's place there and the seconds of a slice."""
        if at_drive:
            return self._processors[drive], 0, self.case.slice_seconds_of(drive)
        return self._processors[-1], drive, self.case.host_slice_seconds

    def host_reads(self, drive: int, layer: int, size: int) -> None:
        """Take bytes of a gradient; step and send back the blocks that are there of every drive."""
        got, whole = self._got[layer], self.case.layers[layer].size_bytes
        got[drive] += size
        there, start = min(got), self._stepped[layer]
        end = whole if there >= whole else there - there % self._blocks[layer]
        if end <= start:
            return
        for path in self._pulls:
            path.offer(self._steps[layer], layer, start, end)
        self._stepped[layer] = end
        if end == whole:
            self._got[layer] = [each - whole for each in got]
            self._stepped[layer] = 0
            self._steps[layer] += 1

    def drive_reads(self, drive: int, layer: int, size: int) -> None:
        """Take bytes of parameters."""
        self.drives[drive].read(layer, size)

    def play(self) -> PlayedSteps:
        """Run until enough steps have begun; return how long those that count take, of the drive that is last."""
        steps = _WARM + _COUNTED
        for drive in self.drives:
            drive.begin()
        self.clock.run(lambda: all(len(drive.begun) > steps for drive in self.drives))
        seconds = max((drive.begun[steps] - drive.begun[_WARM]) / _COUNTED for drive in self.drives)
        last = min(drive.begun[steps - 1] for drive in self.drives)
        return PlayedSteps(seconds, [each for each in self.carried if each.begin_seconds >= last])


class PlayedSteps(NamedTuple):
    """What a step takes once steps are alike, from a forward pass's begin to the next one's, and the last one's slices.

    These are those that left in it and were read by its end, in the order of their ends.
    """

    seconds: float
    carried: list[CarriedSlice]


def play_steps(case: LinkWorld, setting: Setting) -> PlayedSteps:
    """Return a step once steps are alike, with its slices."""
    return _Run(case, setting).play()


def step_seconds(case: LinkWorld, setting: Setting) -> float:
    """Return what a step takes once steps are alike: from a forward pass's begin to the next one's."""
    return play_steps(case, setting).seconds


def _block_bytes(size_bytes: int) -> int:
    block = BLOCK_BYTES
    while block * MOST_BLOCKS < size_bytes:
        block *= 2
    return block

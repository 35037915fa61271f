"""Log of the slices of one device's step, both ways, and of the seconds of each layer. Pure."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_TIMED_SLICES
from firmware_agent.common.frames.step_frames import Timed
from firmware_agent.common.send_queue import Piece
from host.core.slice_record import SliceRecord

PUSH, PULL = "push", "pull"


@dataclass
class _Pull:
    """A slice that has left for the device."""

    piece: Piece
    ready_seconds: float
    begin_seconds: float
    left_bytes: int
    end_seconds: float = float("nan")


@dataclass
class SliceLog:
    """Takes down what happens to slices, as it happens.

    Attributes:
        step: its number.
        device: its name.
        now: returns monotonic seconds.
        names: of the tensors that the device announced.
        crossing: of those that it handed over at the cut of the model.
        timed: what the device told of its own times; None if it has not.
    """

    step: int = 0
    device: str = ""
    now: Callable[[], float] = time.monotonic
    names: list[str] = field(default_factory=list)
    crossing: list[str] = field(default_factory=list)
    timed: Timed | None = None
    _offered: dict[str, deque[tuple[int, int, float]]] = field(default_factory=dict)
    _pulls: list[_Pull] = field(default_factory=list)
    _unread: deque[_Pull] = field(default_factory=deque)
    # When the last byte of a slice came, by tensor and one past that byte: once for each part of what crosses a cut.
    _came: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    # How many moments those are: a device may repeat its slices for ever.
    _arrivals: int = 0
    _told_seconds: float = 0.0

    def offer(self, tensor: str, start: int, end: int) -> None:
        """Note that bytes of the weights are there."""
        self._offered.setdefault(tensor, deque()).append((start, end, self.now()))

    def leave(self, piece: Piece) -> None:
        """Note that a slice leaves."""
        offered, end = self._offered[piece.tensor], piece.offset + piece.size_bytes
        # The last of the ranges that it was put together of.
        ready = max((moment for start, edge, moment in offered if start < end and piece.offset < edge), default=0.0)
        self._offered[piece.tensor] = deque(each for each in offered if each[1] > end or each[0] >= end)
        pull = _Pull(piece, ready, self.now(), piece.size_bytes)
        self._pulls.append(pull)
        self._unread.append(pull)

    def acknowledge(self, size_bytes: int) -> None:
        """Note that the device has read so many bytes more."""
        while size_bytes and self._unread:
            head = self._unread[0]
            taken = min(size_bytes, head.left_bytes)
            head.left_bytes -= taken
            size_bytes -= taken
            if not head.left_bytes:
                head.end_seconds = self.now()
                self._unread.popleft()

    def arrive(self, name: str, end: int) -> None:
        """Note a slice that ends at this byte of the tensor of this name; no more of them than a device can tell of."""
        if self._arrivals == MAX_TIMED_SLICES:
            return
        self._arrivals += 1
        self._came.setdefault((name, end), []).append(self.now())

    def take(self, timed: Timed) -> None:
        """Take what the device tells of its own times.

        Raises:
            ProtocolError: it tells of another step, or of tensors that it has not announced.
        """
        named = {*(each.tensor for each in timed.slices), *(each.tensor for each in timed.tensors)}
        if timed.step != self.step or max(named, default=0) >= max(1, len(self.names) + len(self.crossing)):
            raise ProtocolError(f"{self.device} told of times that are not those of step {self.step}")
        self.timed, self._told_seconds = timed, self.now()

    def records(self) -> Iterator[SliceRecord]:
        """Yield all slices that were read, pulls first; pushes only if the device told of them."""
        yield from (
            self._record(PULL, pull.piece, pull.ready_seconds, pull.begin_seconds, pull.end_seconds)
            for pull in self._pulls
            if not pull.left_bytes
        )
        if self.timed is None:
            return
        offset = self._clock_offset(self.timed)
        names, came_before = [*self.names, *self.crossing], Counter[tuple[str, int]]()
        for each in self.timed.slices:
            key = name, _ = names[each.tensor], each.offset + each.size_bytes
            piece = Piece(self.step, 0, each.offset, each.size_bytes, name)
            begin, moments = each.begin_seconds + offset, self._came.get(key, [])
            came = max(begin, moments[came_before[key]] if came_before[key] < len(moments) else begin)
            came_before[key] += 1
            yield self._record(PUSH, piece, each.ready_seconds + offset, begin, came)

    def _clock_offset(self, timed: Timed) -> float:
        """Return by how much the host's clock is ahead of the device's, and the least delay of a message from it."""
        names = [*self.names, *self.crossing]
        firsts = [(self._came.get((names[s.tensor], s.offset + s.size_bytes)), s.begin_seconds) for s in timed.slices]
        delays = [came[0] - begin for came, begin in firsts if came and len(came) == 1]
        return min(self._told_seconds - timed.now_seconds, *delays, math.inf)

    def _record(self, direction: str, piece: Piece, ready: float, begin: float, end: float) -> SliceRecord:
        return SliceRecord(
            step=self.step,
            device=self.device,
            direction=direction,
            tensor=piece.tensor,
            offset=piece.offset,
            size_bytes=piece.size_bytes,
            ready_seconds=ready,
            begin_seconds=begin,
            end_seconds=end,
        )

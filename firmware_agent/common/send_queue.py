"""Send queue of one stream and direction: what waits, in which order, and how much may be under way.

The stream's sender, the simulation (`csd_lab.simulate.turn_simulation`) and the tests drive the same queue.
It knows no thread and no clock: the same calls give the same pieces.

`priority` is the rule of ByteScheduler (Peng et al., SOSP 2019, section 4.2): the ready piece whose tensor the next
forward pass needs first goes first, while credit is left. Credit is bytes: the limit less what the peer has not read
yet. A piece leaves if it is positive, whatever the piece's size, so it falls below zero by less than one slice; a piece
that waited for room of its own size would let smaller, later ones pass it.

`fifo` is what a framework does without a scheduler: what became ready first goes first, in one piece as it was offered,
without a limit. Whoever wants whole tensors on the wire offers whole tensors.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal, NamedTuple

from firmware_agent.common.errors import ConfigurationError, ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_EXCHANGE_BYTES

Schedule = Literal["fifo", "priority"]


@dataclass(frozen=True)
class TransferSettings:
    """How a step's tensors are sent.

    Attributes:
        schedule: which of the ready pieces goes first.
        slice_bytes: tensors are cut at multiples of this; None leaves them whole.
        credit_bytes: so much may be under way, not yet read by the peer, when another piece leaves; None is no limit.

    Raises:
        ConfigurationError: a size is not 1 to `MAX_EXCHANGE_BYTES`, the schedule is unknown, or `fifo` has a size.
    """

    schedule: Schedule = "fifo"
    slice_bytes: int | None = None
    credit_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no queue can do."""
        if self.schedule not in ("fifo", "priority"):
            raise ConfigurationError(f"the schedule {self.schedule!r} is unknown; choose 'fifo' or 'priority'")
        for name, size in (("slice", self.slice_bytes), ("credit", self.credit_bytes)):
            if size is None:
                continue
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_EXCHANGE_BYTES:
                raise ConfigurationError(f"a {name} of {size!r} bytes; it must be 1 to {MAX_EXCHANGE_BYTES}")
            if self.schedule == "fifo":
                raise ConfigurationError(f"fifo sends what is offered as it is; drop the {name} or choose 'priority'")


class Piece(NamedTuple):
    """Bytes [offset, offset + size_bytes) of a tensor, not encoded yet; `order` is of its first use in the forward."""

    exchange: int
    order: int
    offset: int
    size_bytes: int
    tensor: str


class _Waiting(NamedTuple):
    """Bytes [start, end) that wait. The first two fields rank it: what compares smallest is sent first."""

    major: int
    minor: int
    start: int
    end: int
    tensor: str
    exchange: int
    order: int
    arrival: int


class SendQueue:
    """The pieces of one direction of one stream. Ranges wait as they were offered and are cut as they leave."""

    def __init__(self, sending: TransferSettings) -> None:
        """Begin empty, with nothing under way."""
        self._heap: list[_Waiting] = []
        self._queued = self._in_flight = self._arrivals = 0
        self._take(sending)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait."""
        return self._queued

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that have left and that the peer has not read yet."""
        return self._in_flight

    @property
    def sending(self) -> TransferSettings:
        """The settings that hold now."""
        return self._sending

    def offer(self, exchange: int, order: int, tensor: str, start: int, end: int) -> None:
        """Add bytes [start, end) of a tensor; none of them may have been offered before, which nobody checks here.

        Args:
            exchange: of an older one everything leaves before anything of a newer one.
            order: the tensor's place in the order of first use in the forward pass; of two tensors with the same place
                the offsets, then the names decide.
            tensor: its name.
            start: first byte.
            end: one past the last; an empty range adds nothing.

        Raises:
            ProtocolError: the range begins before the tensor, or ends before it begins.
        """
        if not 0 <= start <= end:
            raise ProtocolError(f"{tensor}: bytes {start} to {end} are no range of a tensor")
        if start == end:
            return
        major, minor = (self._arrivals, 0) if self._fifo else (exchange, order)
        heapq.heappush(self._heap, _Waiting(major, minor, start, end, tensor, exchange, order, self._arrivals))
        self._arrivals += 1
        self._queued += end - start

    def next(self) -> Piece | None:
        """Return the piece that leaves now, and count it as under way; None if nothing waits or no credit is left."""
        heap = self._heap
        if not heap or self._in_flight >= self._credit:
            return None
        major, minor, start, _, tensor, exchange, order, _ = last = heapq.heappop(heap)
        end = start - start % self._slice + self._slice
        while last.end < end and self._goes_on(last):
            last = heapq.heappop(heap)
        if end < last.end:
            heapq.heappush(heap, _Waiting(major, minor, end, last.end, tensor, exchange, order, last.arrival))
        else:
            end = last.end
        self._queued -= end - start
        self._in_flight += end - start
        return Piece(exchange, order, start, end - start, tensor)

    def acknowledge(self, size_bytes: int) -> None:
        """Give back the credit of bytes that the peer has read.

        Raises:
            ProtocolError: less than a byte, or more than is under way.
        """
        if not 1 <= size_bytes <= self._in_flight:
            raise ProtocolError(f"{size_bytes} bytes are said to be read while {self._in_flight} are under way")
        self._in_flight -= size_bytes

    def change(self, sending: TransferSettings) -> None:
        """Go on with other settings: what waits is ranked and cut anew, what has left stays counted."""
        ranked = sending.schedule != self._sending.schedule
        self._take(sending)
        if ranked:
            self._heap = [
                wait._replace(major=wait.arrival, minor=0)
                if self._fifo
                else wait._replace(major=wait.exchange, minor=wait.order)
                for wait in self._heap
            ]
            heapq.heapify(self._heap)

    def _take(self, sending: TransferSettings) -> None:
        self._sending, self._fifo = sending, sending.schedule == "fifo"
        self._slice = sending.slice_bytes or MAX_EXCHANGE_BYTES
        # Without a limit an exchange after the other may be under way.
        self._credit = sending.credit_bytes or 1 << 62

    def _goes_on(self, last: _Waiting) -> bool:
        """Whether what comes next is of the same tensor, without a gap; of fifo everything leaves as it was offered."""
        if self._fifo or not self._heap:
            return False
        wait = self._heap[0]
        return (wait.start, wait.tensor, wait.exchange) == (last.end, last.tensor, last.exchange)

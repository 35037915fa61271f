"""A send queue that remembers when each piece became ready, left, and was read by the peer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from firmware_agent.send_queue import Piece, Sending, SendQueue


class Watched(NamedTuple):
    """A piece that has been read; seconds of the queue's own clock."""

    piece: Piece
    ready_seconds: float
    left_seconds: float
    read_seconds: float


class WatchedQueue(SendQueue):
    """A `SendQueue` that tells of each piece once the peer has read all of it."""

    def __init__(self, sending: Sending, now: Callable[[], float], on_read: Callable[[Watched], None]) -> None:
        """Begin empty; `now` is the clock, and `on_read` is told in the order in which pieces left."""
        super().__init__(sending)
        self._now, self._on_read = now, on_read
        # (exchange, tensor) -> (end, moment) of each range that was offered and has not left whole.
        self._ready: dict[tuple[int, str], list[tuple[int, int, float]]] = {}
        self._under_way: deque[tuple[Piece, float, float]] = deque()
        self._read_bytes = 0

    def offer(self, exchange: int, order: int, tensor: str, start: int, end: int) -> None:
        """See `SendQueue.offer`."""
        super().offer(exchange, order, tensor, start, end)
        if end > start:
            self._ready.setdefault((exchange, tensor), []).append((start, end, self._now()))

    def next(self) -> Piece | None:
        """See `SendQueue.next`."""
        piece = super().next()
        if piece is not None:
            self._under_way.append((piece, self._take_ready(piece), self._now()))
        return piece

    def acknowledge(self, size_bytes: int) -> None:
        """See `SendQueue.acknowledge`."""
        super().acknowledge(size_bytes)
        self._read_bytes += size_bytes
        while self._under_way and self._under_way[0][0].size_bytes <= self._read_bytes:
            piece, ready, left = self._under_way.popleft()
            self._read_bytes -= piece.size_bytes
            self._on_read(Watched(piece, ready, left, self._now()))

    def _take_ready(self, piece: Piece) -> float:
        """Return when the last byte of a piece became ready, and forget ranges of which nothing is left."""
        key, end = (piece.exchange, piece.tensor), piece.offset + piece.size_bytes
        ranges = self._ready[key]
        moment = max(each for low, high, each in ranges if low < end and piece.offset < high)
        # Bytes of a tensor leave with rising offsets where they are ready in that order; what was passed stays.
        kept = [(max(low, end) if low >= piece.offset else low, high, each) for low, high, each in ranges]
        self._ready[key] = [each for each in kept if each[0] < each[1]]
        if not self._ready[key]:
            del self._ready[key]
        return moment

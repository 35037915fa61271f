"""The slices of a run whose steps overlap, on the host's clock: what it sent itself, and what drives told it."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from typing import NamedTuple

from csd_emu.communication.trace import PULL_NAME, PUSH_NAME, SliceSpan
from firmware_agent.queue_watch import Watched

# Of a longer run the last ones are kept: a file of some 60 MB.
MOST_SLICES = 100_000


class Told(NamedTuple):
    """What a drive told of the slices that it sent: seconds of its own clock, and that clock when it told."""

    device: str
    watched: tuple[Watched, ...]
    device_seconds: float
    host_seconds: float


class SliceLog:
    """Keeps the slices that were sent last, in both directions.

    A drive's clock begins anywhere. The least difference between the host's clock when a report came and the drive's
    when it left is taken for what lies between them: it is too large by the fastest report's time under way, so pushed
    slices are shown at most that much too late.
    """

    def __init__(self, most: int = MOST_SLICES) -> None:
        """Begin empty; keep at most so many slices in each direction."""
        self._pulled: deque[SliceSpan] = deque(maxlen=most)
        self._pushed: deque[tuple[str, Watched]] = deque(maxlen=most)
        self._behind: dict[str, float] = defaultdict(lambda: math.inf)

    def add_pulled(self, device: str, watched: Watched) -> None:
        """Take a slice that the host sent and the device has read; seconds of the host's clock."""
        self._pulled.append(_span(device, PULL_NAME, watched, 0.0))

    def add_pushed(self, told: Told) -> None:
        """Take what a drive told."""
        self._behind[told.device] = min(self._behind[told.device], told.host_seconds - told.device_seconds)
        self._pushed.extend((told.device, each) for each in told.watched)

    def spans(self) -> list[SliceSpan]:
        """Return the slices that are kept, on the host's clock."""
        pushed = (_span(device, PUSH_NAME, each, self._behind[device]) for device, each in self._pushed)
        return [*self._pulled, *pushed]

    def __bool__(self) -> bool:
        return bool(self._pulled or self._pushed)


def _span(device: str, direction: str, watched: Watched, behind_seconds: float) -> SliceSpan:
    piece, *moments = watched
    ready, left, read = (moment + behind_seconds for moment in moments)
    return SliceSpan(piece.exchange, device, direction, piece.tensor, piece.offset, piece.size_bytes, ready, left, read)

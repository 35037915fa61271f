"""Times of the events in a step whose slices overlap computing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from firmware_agent.common.frames.frame_fields import MAX_TIMED_SLICES
from firmware_agent.common.frames.step_frames import LeftSlice, TensorTimes, Timed
from firmware_agent.common.send_queue import Piece


class StepTiming:
    """Takes the times of one step. Seconds of computing leave out what was waited for.

    Attributes:
        number: of the step.
        resent: whether its gradients leave by other settings than the step came with.
    """

    def __init__(self, number: int, now: Callable[[], float] = time.monotonic) -> None:
        """Begin a step; `now` returns monotonic seconds."""
        self.number, self._now = number, now
        self._begin, self._end = now(), 0.0
        self.resent = False
        self._used: dict[str, float] = {}
        self._complete: dict[str, float] = {}
        self._offered: dict[str, float] = {}
        self._left: list[tuple[Piece, float, float]] = []

    def skip(self, seconds: float) -> None:
        """Leave out a wait that has just ended."""
        self._begin += seconds

    def use(self, name: str) -> None:
        """Note the first use of a tensor."""
        self._used[name] = self._now() - self._begin

    def complete(self, name: str) -> None:
        """Note that a tensor's gradient is complete."""
        self._complete[name] = self._now() - self._begin

    def end(self) -> None:
        """Note that the step is computed."""
        self._end = self._now() - self._begin

    def offer(self, name: str) -> None:
        """Note that a tensor may be sent; one that crosses a cut does so once for each part of the step."""
        self._offered[name] = self._now()

    def leave(self, piece: Piece) -> None:
        """Note that a slice leaves."""
        self._left.append((piece, self._offered[piece.tensor], self._now()))

    def told(self, names: Sequence[str], crossing: Sequence[str] = ()) -> Timed:
        """Return all that, with tensors by their places in `names`, and behind these in `crossing`."""
        places = {name: place for place, name in enumerate((*names, *crossing))}
        slices = [
            LeftSlice(places[each.tensor], each.offset, each.size_bytes, ready, begin)
            for each, ready, begin in self._left[:MAX_TIMED_SLICES]
        ]
        tensors = [
            TensorTimes(place, self._used.get(name, 0.0), self._complete.get(name, 0.0))
            for place, name in enumerate(names)
        ]
        return Timed(self.number, self._now(), self._end, slices, tensors, self.resent)

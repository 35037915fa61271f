"""A drive of the simulation: forward from the first layer, backward from the last, over and over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from csd_emu.perfmodel.overlap.layer_work import Costs

FORWARD, BACKWARD = "forward", "backward"


class Computed(NamedTuple):
    """A layer's forward or backward pass in one step."""

    step: int
    layer: int
    phase: str
    begin_seconds: float
    end_seconds: float


class DriveCompute:
    """One thing at a time; a layer's forward pass waits until nothing of the layer's parameters is missing."""

    __slots__ = (
        *("_at", "_begin", "_due", "_late", "_layers", "_missing", "_seconds", "_sizes", "_turns", "begun_seconds"),
        *("turning", "until_seconds"),
    )

    def __init__(self, costs: Costs, turns: bool = False, late: Callable[[], float] | None = None) -> None:
        """Begin at 0 with all parameters there.

        `begun_seconds` holds when the forward pass of each step began; `until_seconds` is when what is computed now
        ends, infinity while the drive waits. One that `turns` waits between its forward and its backward pass: it is
        `turning` until it is told to go on. `late` says how many seconds later than due a pass ends, asked anew for
        each that takes time; it does not add up, for the next pass is due as if this one had ended in time.
        """
        self._turns, self.turning, self._late = turns, False, late
        backward = [layer.backward_seconds for layer in costs]
        self._layers = len(costs)
        self._seconds = [layer.forward_seconds for layer in costs] + backward[::-1]
        self._sizes = [layer.size_bytes for layer in costs]
        self._missing = [0] * len(costs)
        self._at, self._begin = 0, 0.0
        self.begun_seconds, self.until_seconds = [0.0], self._seconds[0]
        # When what is computed now should end; infinity while the drive waits.
        self._due = self.until_seconds

    def skip_forward(self) -> None:
        """Begin with the end of the first forward pass instead; nothing may have happened yet."""
        self._at, self.until_seconds = self._layers - 1, 0.0

    def end(self, now: float) -> Computed:
        """End what is computed, go on with the next layer if that need not wait, and return what has ended."""
        at, layers = self._at, self._layers
        layer = at if at < layers else 2 * layers - 1 - at
        phase = FORWARD if at < layers else BACKWARD
        done = Computed(len(self.begun_seconds) - 1, layer, phase, self._begin, now)
        if phase == BACKWARD:
            self._missing[layer] = self._sizes[layer]
        self._at = at + 1 if at + 1 < 2 * layers else 0
        self._go_on(now)
        return done

    def arrive(self, layer: int, size_bytes: int, now: float) -> None:
        """Take so many bytes of a layer's new parameters."""
        self._missing[layer] -= size_bytes
        if layer == self._at and self.until_seconds == math.inf:
            self._go_on(now)

    def turn(self, now: float) -> None:
        """Begin the backward pass of a step whose forward pass has ended."""
        self.turning = False
        self._compute(now)

    def _go_on(self, now: float) -> None:
        at = self._at
        if at < self._layers and self._missing[at]:
            self.until_seconds = self._due = math.inf
            return
        if at == self._layers and self._turns:
            self.turning, self.until_seconds = True, math.inf
            self._due = math.inf
            return
        if at == 0:
            self.begun_seconds.append(now)
        self._compute(now)

    def _compute(self, now: float) -> None:
        seconds = self._seconds[self._at]
        self._begin, self.until_seconds = now, now + seconds
        if self._late is not None and seconds:
            self._due = min(now, self._due) + seconds
            self.until_seconds = max(now, self._due + self._late())

"""Screening of one step's gradients as they arrive, before the optimiser uses them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from firmware_agent.common.slices import Array, Spans
from host.core.scanning import UNLIMITED, NormLimits, Scan, squares
from host.training.contributions import Reason, Refusal, not_finite
from host.training.tensor_ranges import TensorRange


class GradientScreen:
    """What is seen of a step's gradients while they come in, and whose may be stepped before all have been judged.

    Attributes:
        refused: device -> why; nothing more of it goes into the step.
        limits: up to which a device's part may be stepped before it is judged, or if it never is, for it is lost.
    """

    def __init__(self, buffers: Mapping[str, Array] | None = None, limits: NormLimits = UNLIMITED) -> None:
        """Begin with nothing; `buffers` are those that the devices were sent, in the memory where they are replaced."""
        self.refused: dict[str, Refusal] = {}
        self.limits = limits
        self._buffers = dict(buffers or {})
        self._squares: defaultdict[str, float] = defaultdict(float)
        self._buffer_squares: defaultdict[str, float] = defaultdict(float)
        self._count_squares: defaultdict[str, float] = defaultdict(float)

    def look(self, device: str, block: TensorRange, array: Array, spans: Spans | None = None) -> bool:
        """Look at a device's block, a flat array, once; return whether its values are finite.

        Of bytes that have not come (see `host.training.sync.gradient_mean.TensorContribution`) nothing is asked.
        """
        if device in self.refused:
            return False
        buffer, size = self._buffers.get(block.tensor), array.itemsize
        start = None if buffer is None else buffer.reshape(-1)[block.start // size : block.end // size]
        parts = [slice(None)] if spans is None else [slice(-(-s // size), max(0, e // size)) for s, e in spans]
        for part in parts:
            finite, total = squares(array[part], None if start is None else start[part])
            if not finite:
                self.refused[device] = not_finite(block.tensor)
                return False
            if start is not None:
                floating = np.issubdtype(array.dtype, np.floating)
                (self._buffer_squares if floating else self._count_squares)[device] += total
            elif np.issubdtype(array.dtype, np.floating):
                self._squares[device] += total
        return True

    def within(self, device: str) -> bool:
        """Return whether all that was seen of a device is within the limits."""
        scan = self.scan(device)
        limits = self.limits
        within = scan.norm <= limits.norm and scan.buffer_norm <= limits.buffer_norm
        return within and scan.count_norm <= limits.count_norm

    def refuse_unjudged(self, device: str) -> None:
        """Refuse a device that goes beyond the limits, and is lost, so that nobody else judges it."""
        scan = self.scan(device)
        self.refused[device] = Refusal(
            Reason.NORM,
            f"it was lost, and what has come of its gradient has the norm {scan.norm:.3g}, of its buffers' change "
            f"{scan.buffer_norm:.3g}, where {self.limits.norm:.3g} and {self.limits.buffer_norm:.3g} are the most that "
            "is taken of such a one",
        )

    def scan(self, device: str) -> Scan:
        """Return what was seen of a device's gradients so far."""
        why = self.refused.get(device)
        norms = [math.sqrt(each[device]) for each in (self._squares, self._buffer_squares, self._count_squares)]
        return Scan(norms[0], norms[1], norms[2], why.tensor if why is not None else "")

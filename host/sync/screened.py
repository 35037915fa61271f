"""The gradients of one step are looked at as they come together, before anything is stepped with them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping

import numpy as np

from firmware_agent.exchange import Array, Spans
from host.scanning import Scan, squares
from host.screening import Reason, Refusal, not_finite


class GradientScreen:
    """What is refused of a step's gradients while they come in: no finite numbers, and norms beyond a limit.

    Attributes:
        refused: device -> why; nothing more of it goes into the step.
    """

    def __init__(self, buffers: Collection[str] = (), norm_limit: float = math.inf) -> None:
        """Begin with nothing; of `buffers` only finite values are asked."""
        self.refused: dict[str, Refusal] = {}
        self._buffers, self._limit = frozenset(buffers), norm_limit
        self._squares: defaultdict[str, float] = defaultdict(float)
        self._whole: set[str] = set()

    def look(self, device: str, arrays: Mapping[str, Array]) -> None:
        """Look at all that a device has sent, at once."""
        self._whole.add(device)
        for name, array in arrays.items():
            if not self._take(device, name, array):
                return

    def admits(self, device: str, tensor: str, array: Array, spans: Spans | None) -> bool:
        """Look at a flat part of a tensor, and return whether it may go into the step.

        Of bytes that have not come (see `host.sync.reduction.Contribution`) nothing is asked.
        """
        if device in self.refused:
            return False
        if device in self._whole:
            return True
        if spans is None:
            return self._take(device, tensor, array)
        size = array.itemsize
        return all(self._take(device, tensor, array[-(-start // size) : max(0, end // size)]) for start, end in spans)

    def scan(self, device: str) -> Scan:
        """Return what was seen of a device's gradients so far."""
        why = self.refused.get(device)
        return Scan(math.sqrt(self._squares[device]), 0.0, why.tensor if why is not None else "")

    def _take(self, device: str, tensor: str, array: Array) -> bool:
        finite, total = squares(array)
        if not finite:
            self.refused[device] = not_finite(tensor)
            return False
        if tensor in self._buffers or not np.issubdtype(array.dtype, np.floating):
            return True
        self._squares[device] += total
        if self._squares[device] > self._limit**2:
            norm = math.sqrt(self._squares[device])
            told = f"its gradient's norm is {norm:.3g} with {tensor}, where {self._limit:.3g} is the most that is taken"
            self.refused[device] = Refusal(Reason.NORM, told, tensor)
            return False
        return True

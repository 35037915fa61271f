"""Weights that may be sent for the next step: those that the optimiser has already updated. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from host.training.tensor_ranges import TensorRange


class Release:
    """The blocks that a step has updated so far; each listener is notified of each block once."""

    def __init__(self, blocks: Iterable[TensorRange]) -> None:
        """Begin with all of them held back."""
        self._held = dict.fromkeys(blocks)
        self._released: list[TensorRange] = []
        self._listeners: list[Callable[[TensorRange], None]] = []

    def add(self, block: TensorRange) -> None:
        """Release a block; listeners are notified once per block."""
        if block in self._held:
            del self._held[block]
            self._released.append(block)
            for listener in self._listeners:
                listener(block)

    def add_all(self) -> None:
        """Let all go that are held back, stepped or not: the step is over."""
        for block in list(self._held):
            self.add(block)

    def subscribe(self, listener: Callable[[TensorRange], None]) -> None:
        """Notify `listener` of every block, at once of those already released."""
        for block in self._released:
            listener(block)
        self._listeners.append(listener)


class Cells:
    """One tensor's bytes on a grid: a cell is ready when all of its bytes are."""

    def __init__(self, size_bytes: int, cell_bytes: int | None) -> None:
        """Begin with nothing ready; None is one cell for all."""
        self._size, self._cell = size_bytes, cell_bytes or max(1, size_bytes)
        self._missing: dict[int, int] = {}

    def add(self, start: int, end: int) -> tuple[int, int] | None:
        """Take bytes [start, end), none of which came before; return the range of cells that they complete, if any."""
        whole: list[int] = []
        for cell in range(start // self._cell, -(-end // self._cell)):
            low, high = cell * self._cell, min(self._size, (cell + 1) * self._cell)
            left = self._missing.get(cell, high - low) - (min(end, high) - max(start, low))
            self._missing[cell] = left
            if not left:
                whole.append(cell)
        # What lies inside is complete; only the first and the last cell may have waited for others' bytes.
        return (whole[0] * self._cell, min(self._size, (whole[-1] + 1) * self._cell)) if whole else None

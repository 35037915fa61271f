"""The pieces in which the host steps a tensor, and which of them it has stepped: fixed ranges of its bytes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from csd_emu.perfmodel.overlap.stepped_ranges import (
    BLOCK_BYTES as BLOCK_BYTES,  # what is simulated is what is done
)
from csd_emu.perfmodel.overlap.stepped_ranges import (
    tensor_block_bytes,
)
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.slices import spec_bytes


class TensorRange(NamedTuple):
    """Bytes [start, end) of a tensor."""

    tensor: str
    start: int
    end: int


def item_blocks(items: int, item_bytes: int, block_bytes: int | None) -> list[tuple[int, int]]:
    """Return the edges, in bytes, of a tensor's blocks: whole elements, at least one block.

    Args:
        items: elements of the tensor.
        item_bytes: of one.
        block_bytes: at most so long, or as `tensor_block_bytes` says of a large tensor; None leaves it whole.
    """
    size = items * item_bytes
    most = size if block_bytes is None else tensor_block_bytes(size, block_bytes)
    step = most - most % item_bytes
    if size <= step or not step:
        return [(0, size)]
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def cut_blocks(specs: Sequence[TensorSpec], block_bytes: int | None) -> dict[str, list[TensorRange]]:
    """Return each tensor's blocks, offset rising; one without a byte has one block."""
    return {
        spec.name: [
            TensorRange(spec.name, *edges)
            for edges in item_blocks(
                spec_bytes(spec) // np.dtype(spec.dtype).itemsize, np.dtype(spec.dtype).itemsize, block_bytes
            )
        ]
        for spec in specs
    }


def joined(blocks: Sequence[TensorRange]) -> list[TensorRange]:
    """Return neighbours in a row, each of which ends where the next one of its tensor begins, as one block each."""
    found: list[TensorRange] = []
    for block in blocks:
        last = found[-1] if found else block
        if last.tensor == block.tensor and last.start < last.end == block.start < block.end:
            found[-1] = TensorRange(block.tensor, last.start, block.end)
        else:
            found.append(block)
    return found


def overlapped(blocks: Sequence[TensorRange], start: int, end: int) -> Sequence[TensorRange]:
    """Return those of a tensor's `blocks` that bytes [start, end) lie in; all but the last are equally long."""
    length = blocks[0].end - blocks[0].start
    return blocks[start // length : -(-end // length)] if length else blocks


class Release:
    """The blocks that a step has updated so far, which may be sent for the next; listeners are told of each once."""

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

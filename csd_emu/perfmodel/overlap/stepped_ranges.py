"""Blocks of tensors on the simulated host: each is stepped once every drive's bytes of it are there."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from firmware_agent.common.errors import ConfigurationError

# Drives that send different parts of a block make the host wait for all of it, so blocks are small; but each has its
# price, so that a tensor has no more than so many: its blocks are as much larger as that takes.
BLOCK_BYTES, MOST_BLOCKS = 16 << 10, 64


@lru_cache(1 << 12)  # of the same tensors time and again
def tensor_block_bytes(size_bytes: int, block_bytes: int) -> int:
    """Return the size of a tensor's blocks: `block_bytes` times the least power of two for `MOST_BLOCKS` at most."""
    ratio = -(-size_bytes // (block_bytes * MOST_BLOCKS))
    return block_bytes << max(0, ratio - 1).bit_length()


class SteppedRange(NamedTuple):
    """Bytes [start, end) of a tensor, whose new parameters are ready at `ready_seconds`."""

    ready_seconds: float
    order: int
    start: int
    end: int


@dataclass(frozen=True)
class BlockStepping:
    """How the host steps.

    Attributes:
        block_bytes: ranges of so many bytes, longer ones of large tensors (`tensor_block_bytes`), whatever the slices.
        bytes_per_second: how fast, one range after the other.
        barrier: its optimiser needs every drive's whole gradient before it steps anything.
    """

    block_bytes: int = BLOCK_BYTES
    bytes_per_second: float = math.inf
    barrier: bool = False

    def __post_init__(self) -> None:
        """Refuse blocks or a rate that are not positive."""
        if self.block_bytes < 1 or not self.bytes_per_second > 0:
            raise ConfigurationError("the host steps blocks of at least a byte, at a positive rate; give it such")


class HostBlocks:
    """Gradients in, parameters out; a tensor's bytes come from each drive in order, and so they go out."""

    def __init__(self, sizes: Sequence[int], groups: int, stepping: BlockStepping) -> None:
        """Begin with nothing.

        Args:
            sizes: of the tensors in the order of the forward pass, bytes.
            groups: of drives that do the same.
            stepping: how the host steps.
        """
        self.next_seconds = math.inf
        self._sizes, self._blocks = list(sizes), [tensor_block_bytes(size, stepping.block_bytes) for size in sizes]
        self._seconds_per_byte = 1 / stepping.bytes_per_second
        self._got = [[0] * groups for _ in sizes]
        self._taken = [0] * len(sizes)
        self._free_seconds = 0.0
        self._waiting: deque[SteppedRange] = deque()
        self._barrier, self._whole = stepping.barrier, [size == 0 for size in sizes]

    def take(self, group: int, order: int, size_bytes: int, whole: bool, now: float) -> None:
        """Take bytes from the drives of a group; of `whole` tensors nothing is stepped before all of it is there."""
        got = self._got[order]
        got[group] += size_bytes
        if self._barrier:
            self._take_all(order, now)
            return
        there = min(got)
        size, start = self._sizes[order], self._taken[order]
        end = there if there == size else 0 if whole else there - there % self._blocks[order]
        if end > start:
            if end == size:  # of every drive, so the next bytes of it are of the next exchange
                self._got[order], self._taken[order] = [0] * len(got), 0
            else:
                self._taken[order] = end
            self._step(order, start, end, now)

    def advance(self, now: float) -> list[SteppedRange]:
        """Return what has been stepped by now and was not returned before."""
        waiting, done = self._waiting, []
        while waiting and waiting[0].ready_seconds <= now:
            done.append(waiting.popleft())
        self.next_seconds = waiting[0].ready_seconds if waiting else math.inf
        return done

    def _take_all(self, order: int, now: float) -> None:
        """Step everything once the whole gradient is there."""
        self._whole[order] = min(self._got[order]) == self._sizes[order]
        if all(self._whole):
            for tensor, size in enumerate(self._sizes):
                self._got[tensor], self._whole[tensor] = [0] * len(self._got[tensor]), size == 0
                self._step(tensor, 0, size, now)

    def _step(self, order: int, start: int, end: int, now: float) -> None:
        self._free_seconds = max(self._free_seconds, now) + (end - start) * self._seconds_per_byte
        if not self._waiting:
            self.next_seconds = self._free_seconds
        self._waiting.append(SteppedRange(self._free_seconds, order, start, end))

"""One pass over tensors: whether all values are finite numbers, and their norm. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from firmware_agent.exchange import Array

# Integers beyond it have no float64, in which means are taken.
_MOST_INTEGER = 1 << 53
# So many elements at a time: they stay in the processor's first cache, and BLAS takes no threads for them.
_BLOCK_ELEMENTS = 8 << 10


class Squares(NamedTuple):
    """Whether all values of an array are finite, and the sum of their squares, infinite if it has no float64."""

    finite: bool
    total: float


def squares(array: Array, minus: Array | None = None) -> Squares:
    """Return the sum of squares of an array, or of its difference to another one, in one pass.

    Each block is summed in its own type; one whose sum is not finite is looked at again, in float64, so that values too
    large to be squared in float32 are told from those that are no numbers.
    """
    flat, base = array.reshape(-1), None if minus is None else minus.reshape(-1)
    if not np.issubdtype(array.dtype, np.floating):
        return _whole_squares(flat, base)
    kind = np.promote_types(array.dtype, np.float32)
    work, total, finite = np.empty(min(flat.size, _BLOCK_ELEMENTS), kind), 0.0, True
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK_ELEMENTS):
            block = flat[start : start + _BLOCK_ELEMENTS]
            other = None if base is None else base[start : start + _BLOCK_ELEMENTS]
            if other is not None:
                values = np.subtract(block, other, out=work[: block.size], dtype=kind)
            else:
                values = block if block.dtype == kind else block.astype(kind)
            part = float(np.dot(values, values))
            if not math.isfinite(part):
                finite = finite and bool(np.isfinite(block).all())
                part = _wide_square(block, other)
            total += part
    return Squares(finite, total)


def _whole_squares(flat: Array, base: Array | None) -> Squares:
    """Return the same of integers or booleans: those that float64 does not have are taken for infinite."""
    wide = flat.astype(np.float64)
    if flat.size and float(np.abs(wide).max()) > _MOST_INTEGER:
        return Squares(False, math.inf)
    return Squares(True, float(np.square(wide if base is None else wide - base.astype(np.float64)).sum()))


def _wide_square(block: Array, other: Array | None) -> float:
    wide = block.astype(np.float64)
    values = wide if other is None else wide - other.astype(np.float64)
    return float(np.dot(values, values))


@dataclass(frozen=True)
class Scan:
    """What was seen of a contribution's tensors.

    Attributes:
        norm: Euclidean, of the trained parameters' update.
        buffer_norm: of the floating-point buffers' change.
        bad: the first tensor with a value that is no finite number; empty if there is none.
    """

    norm: float
    buffer_norm: float = 0.0
    bad: str = ""


class NormLimits(NamedTuple):
    """Of a gradient, and of the change of buffers."""

    norm: float
    buffer_norm: float


UNLIMITED = NormLimits(math.inf, math.inf)


def scan_update(weights: Mapping[str, Array], start: Mapping[str, Array], buffers: Collection[str]) -> Scan:
    """Look at new weights once; `start` are those that the drive was sent, `buffers` names what is not trained."""
    sums = {False: 0.0, True: 0.0}
    for name, array in weights.items():
        finite, total = squares(array, start[name])
        if not finite:
            return Scan(math.inf, math.inf, name)
        if np.issubdtype(array.dtype, np.floating):
            sums[name in buffers] += total
    return Scan(math.sqrt(sums[False]), math.sqrt(sums[True]))


def first_not_finite(arrays: Mapping[str, Array]) -> str:
    """Return the name of the first array with a value that is no finite number; empty if there is none."""
    return next((name for name, array in arrays.items() if not squares(array).finite), "")

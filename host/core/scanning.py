"""One pass over tensors: whether all values are finite numbers, and their norm. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from firmware_agent.common.slices import Array
from host.core.weighted_mean import DOT_ELEMENTS

# Integers beyond it have no float64, in which means are taken.
_MOST_INTEGER = 1 << 53
# So many elements at a time stay in the processor's second cache; each block hands the interpreter over, twice, to
# whoever receives meanwhile. Of float64 see `DOT_ELEMENTS`.
_BLOCK_ELEMENTS = 64 << 10


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
    size = DOT_ELEMENTS if kind == np.float64 else _BLOCK_ELEMENTS
    work, total, finite = np.empty(min(flat.size, size), kind), 0.0, True
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, size):
            block = flat[start : start + size]
            other = None if base is None else base[start : start + size]
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


class Norms(NamedTuple):
    """Euclidean norms of a contribution, what is usual of them, or the most that is taken.

    Attributes:
        norm: of the trained parameters' update, or gradient.
        buffer_norm: of the floating-point buffers' change.
        count_norm: of the change of buffers of whole numbers, such as counts.
    """

    norm: float = 0.0
    buffer_norm: float = 0.0
    count_norm: float = 0.0


UNLIMITED = Norms(math.inf, math.inf, math.inf)


@dataclass(frozen=True)
class Scan:
    """What was seen of a contribution's tensors.

    Attributes:
        norms: of all of them together.
        bad: the first tensor with a value that is no finite number; empty if there is none.
    """

    norms: Norms = field(default_factory=Norms)
    bad: str = ""


def scan_update(weights: Mapping[str, Array], start: Mapping[str, Array], buffers: Collection[str]) -> Scan:
    """Look at new weights once; `start` are those that the drive was sent, `buffers` names what is not trained."""
    trained = floating = counts = 0.0
    for name, array in weights.items():
        finite, total = squares(array, start[name])
        if not finite:
            return Scan(UNLIMITED, name)
        if name not in buffers:
            trained += total
        elif np.issubdtype(array.dtype, np.floating):
            floating += total
        else:
            counts += total
    return Scan(Norms(math.sqrt(trained), math.sqrt(floating), math.sqrt(counts)))


def first_not_finite(arrays: Mapping[str, Array]) -> str:
    """Return the name of the first array with a value that is no finite number; empty if there is none."""
    return next((name for name, array in arrays.items() if not squares(array).finite), "")

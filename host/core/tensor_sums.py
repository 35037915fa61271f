"""Sums over tensors, block by block: the mean of participants, in their order to the last bit, and norms. Pure."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from firmware_agent.common.errors import ConfigurationError, DeviceLost
from firmware_agent.common.slices import Array, Spans

BLOCK_ELEMENTS = 32 << 10
# So many of float64 BLAS multiplies on one core: threads for less than that cost more than they bring.
DOT_ELEMENTS = 8 << 10
# From this size on a tensor is worth the threads.
_SHARED_ELEMENTS = 1 << 20
# Integers beyond it have no float64, in which means are taken.
_MOST_INTEGER = 1 << 53
# So many elements at a time stay in the processor's second cache; each block hands the interpreter over, twice, to
# whoever receives meanwhile. Of float64 see `DOT_ELEMENTS`.
_NORM_ELEMENTS = 64 << 10


def in_precision(weights: Mapping[str, Array], precision: str) -> dict[str, Array]:
    """Return weights with floating-point ones in this precision; arrays that have it are not copied."""
    return {
        name: array.astype(precision, copy=False) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in weights.items()
    }


def round_weights(samples: Sequence[int]) -> list[int]:
    """Return what each participant of a round counts for: its samples; all the same where nobody trained on any.

    The second happens in a round that only exchanges weights: no participant knows more than another.
    """
    return list(samples) if any(samples) else [1] * len(samples)


def weighted_mean(
    contributions: Sequence[tuple[float, Mapping[str, Array]]], block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Return ``sum_i w_i x_i / sum_i w_i`` per tensor: FedAvg, McMahan et al. 2017, Algorithm 1.

    Args:
        contributions: (weight, name -> array) of each participant, in participant order; all hold the same names,
            shapes and dtypes. Sums are float64; integers and booleans are rounded back to their type.
        block_elements: how many elements are summed at a time, so that sums stay in the processor's cache; the result
            is the same to the bit whatever it is.

    Raises:
        ConfigurationError: there is no participant, a weight is negative or not finite, or all weights are zero.
    """
    weights = np.array([weight for weight, _ in contributions], np.float64)
    if not len(weights) or not np.all(np.isfinite(weights)) or np.any(weights < 0) or weights.sum() == 0:
        raise ConfigurationError(
            f"cannot average with the weights {weights.tolist()}; one must be positive, none negative"
        )
    shares = weights / weights.sum()

    def write(mean: Array, parts: Sequence[Array]) -> None:
        _sum_blocks(mean, parts, shares, block_elements)

    return {name: reduce_arrays([arrays[name] for _, arrays in contributions], write) for name in contributions[0][1]}


def reduce_arrays(arrays: Sequence[Array], write: Callable[[Array, Sequence[Array]], None]) -> Array:
    """Return one tensor made element by element of the participants'; the cores work on parts of a large one at once.

    Args:
        arrays: of one shape and dtype, which the result has too.
        write: is given a flat part of the result to fill, and the same part of each of `arrays`; it goes through them
            in blocks.
    """
    parts = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    result = np.empty(arrays[0].shape, arrays[0].dtype)
    flat, cores = result.reshape(-1), os.cpu_count() or 1
    if flat.size < _SHARED_ELEMENTS or cores == 1:
        write(flat, parts)
        return result
    edges = np.linspace(0, flat.size, cores + 1).astype(int).tolist()
    with ThreadPoolExecutor(cores) as pool:
        spans = [slice(start, end) for start, end in itertools.pairwise(edges)]
        for job in [pool.submit(write, flat[s], [p[s] for p in parts]) for s in spans]:
            job.result()
    return result


def _sum_blocks(mean: Array, parts: Sequence[Array], shares: Array, block_elements: int) -> None:
    """Write the mean of flat `parts` into `mean`; every element's sum is ``((0 + w_1 x_1) + w_2 x_2) + ...``."""
    whole = not np.issubdtype(mean.dtype, np.floating)
    sums, terms = np.empty((2, min(len(mean), block_elements)), np.float64)
    for start in range(0, len(mean), block_elements):
        block = mean[start : start + block_elements]
        total, term = sums[: len(block)], terms[: len(block)]
        total.fill(0)
        for share, part in zip(shares, parts, strict=True):
            np.multiply(part[start : start + len(block)], share, out=term, dtype=np.float64)
            total += term
        block[...] = np.rint(total, out=total) if whole else total


class TensorContribution(NamedTuple):
    """One participant's part in one tensor.

    Attributes:
        weight: what it counts for: records in its gradient.
        array: the tensor.
        spans: which of its bytes were delivered, rising and apart; None for all.
    """

    weight: float
    array: Array
    spans: Spans | None = None


def combine(name: str, contributions: Sequence[TensorContribution]) -> Array:
    """Return ``sum_i w_i g_i / sum_i w_i`` of one tensor, in participant order, summed in float64.

    With w_i records of participant i this is the gradient of the mean loss over all records. Where slices of a
    participant that was lost are missing, both sums run over those who delivered: the weights of every element sum to
    one. An element counts as delivered if all of its bytes were. Integers are rounded.

    Args:
        name: the tensor's, for errors.
        contributions: in participant order; arrays of one shape and dtype.

    Raises:
        ConfigurationError: there is no contribution, or weights are negative, not finite or all zero.
        DeviceLost: an element was delivered by nobody.
    """
    if not contributions:
        raise ConfigurationError(f"{name}: there is no contribution to combine")
    if all(part.spans is None for part in contributions):
        return _mean(contributions, slice(None)).reshape(contributions[0].array.shape)
    total = np.empty_like(contributions[0].array, order="C", subok=False)
    flat, item_bytes = total.reshape(-1), total.itemsize
    spans = [_elements(part, item_bytes) for part in contributions]
    edges = sorted({0, flat.size, *(edge for each in spans for span in each for edge in span)})
    for start, end in itertools.pairwise(edges):
        there = [
            part
            for part, each in zip(contributions, spans, strict=True)
            if any(first <= start < last for first, last in each)
        ]
        if not there:
            raise DeviceLost(
                f"{name}: elements {start} to {end - 1} of {flat.size} were delivered by no participant; take the step "
                "again with those that are left"
            )
        flat[start:end] = _mean(there, slice(start, end))
    return total


def _mean(parts: Sequence[TensorContribution], where: slice) -> Array:
    return weighted_mean([(part.weight, {"": part.array.reshape(-1)[where]}) for part in parts])[""]


def _elements(part: TensorContribution, item_bytes: int) -> Spans:
    """Return which elements have all of their bytes."""
    if part.spans is None:
        return [(0, part.array.size)]
    whole = [(-(-start // item_bytes), end // item_bytes) for start, end in part.spans]
    return [(start, end) for start, end in whole if start < end]


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
    size = DOT_ELEMENTS if kind == np.float64 else _NORM_ELEMENTS
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
    extra_norm: float = 0.0


UNLIMITED = Norms(math.inf, math.inf, math.inf, math.inf)


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
    """Look at new weights once; `start` are those that the drive was sent, `buffers` names what is not trained.

    What the drive was not sent is the algorithm's own: its norm is taken as it is.
    """
    trained = floating = counts = extras = 0.0
    for name, array in weights.items():
        finite, total = squares(array, start.get(name))
        if not finite:
            return Scan(UNLIMITED, name)
        if name not in start:
            extras += total
        elif name not in buffers:
            trained += total
        elif np.issubdtype(array.dtype, np.floating):
            floating += total
        else:
            counts += total
    return Scan(Norms(*map(math.sqrt, (trained, floating, counts, extras))))


def first_not_finite(arrays: Mapping[str, Array]) -> str:
    """Return the name of the first array with a value that is no finite number; empty if there is none."""
    return next((name for name, array in arrays.items() if not squares(array).finite), "")

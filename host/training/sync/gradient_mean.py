"""The gradient of a step: the weighted mean of its participants', tensor by tensor, as far as each was delivered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firmware_agent.common.errors import ConfigurationError, DeviceLost
from firmware_agent.common.slices import Array, Spans
from host.core.weighted_mean import weighted_mean


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
        there = [part for part, each in zip(contributions, spans, strict=True) if _covers(each, start)]
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


def _covers(spans: Spans, element: int) -> bool:
    return any(start <= element < end for start, end in spans)

"""Median and trimmed mean of every single weight: a few drives, whatever they return, do not move it far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from firmware_agent.common.slices import Array
from host.config.plugins.kinds import STRATEGY
from host.core.tensor_sums import BLOCK_ELEMENTS, reduce_arrays
from host.policies.aggregation.strategy import Contribution, Stateless, check_count


@STRATEGY.register(
    "trimmed_mean",
    "The mean of every single weight without the `discard` largest and the `discard` smallest.",
)
class TrimmedMean(Stateless):
    """Coordinate-wise beta-trimmed mean.

    Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (ICML 2018), Definition 2:

        ``w_j <- 1 / (n - 2b) sum_{x in U_j} x``,

    where ``U_j`` are the n drives' values of coordinate j without the ``b = beta n`` largest and the b smallest. With
    at most b hostile drives every coordinate lies between the honest drives' smallest and largest value of it. The
    paper averages gradients of equally many samples; here they are weights, and drives count the same whatever their
    samples, since a number of samples is a drive's word. Every tensor is treated so, buffers too; integers are rounded.
    NaN counts as the largest number. Sums are float64 and run in the order of values, so that the order of drives is
    nothing to them.
    """

    def __init__(self, discard: Annotated[int, Ge(0), Le(10_000)] = 1) -> None:
        """Leave out so many, 0 or more, at each end."""
        self._discard = discard
        self.least_contributions = 2 * discard + 1

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights (see `Strategy.aggregate`)."""
        check_count(self, contributions)
        return trimmed_mean([part.weights for part in contributions], self._discard)


@STRATEGY.register("median", "The median of every single weight.")
class Median(Stateless):
    """Coordinate-wise median.

    Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (ICML 2018), Definition 1:
    ``w_j <- med{w_{k,j}: k}``, of an even number of drives the mean of the two in the middle. While less than half of
    the drives are hostile every coordinate lies between the honest drives' smallest and largest value of it. It is the
    trimmed mean that discards the most (see `TrimmedMean`). Below three drives it would be the mean.
    """

    least_contributions = 3

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights (see `Strategy.aggregate`)."""
        check_count(self, contributions)
        return trimmed_mean([part.weights for part in contributions], (len(contributions) - 1) // 2)


def trimmed_mean(
    weights: Sequence[Mapping[str, Array]], discard: int, block_elements: int = BLOCK_ELEMENTS
) -> dict[str, Array]:
    """Return per tensor the mean of each element's values without the `discard` smallest and largest.

    Args:
        weights: name -> array of each participant, more than ``2 discard``; all hold the same names, shapes and dtypes.
        discard: values left out at each end.
        block_elements: elements that are sorted at a time: so many of each participant are copied, never a model.
    """
    write = partial(_trim_blocks, discard=discard, block_elements=block_elements)
    return {name: reduce_arrays([arrays[name] for arrays in weights], write) for name in weights[0]}


def _trim_blocks(result: Array, parts: Sequence[Array], discard: int, block_elements: int) -> None:
    rows = np.empty((len(parts), min(len(result), block_elements)), result.dtype)
    sums, whole = np.empty(rows.shape[1], np.float64), not np.issubdtype(result.dtype, np.floating)
    for start in range(0, len(result), block_elements):
        block = result[start : start + block_elements]
        values, total = rows[:, : len(block)], sums[: len(block)]
        for row, part in zip(values, parts, strict=True):
            row[...] = part[start : start + len(block)]
        values.sort(axis=0)
        kept = values[discard : len(parts) - discard]
        total.fill(0)
        with np.errstate(over="ignore", invalid="ignore"):  # NaN and what is too large for the type: bounded below
            for row in kept:
                total += row
            total /= len(kept)
            block[...] = np.rint(total, out=total) if whole else total
        # Rounding may leave the range in the last digit, and so may integers beyond 2^53.
        np.maximum(block, kept[0], out=block)
        np.minimum(block, kept[-1], out=block)
        if not whole:
            block[...] = np.add(block, 0.0)  # -0.0 and 0.0 are equal: which of them came first is nothing to the result

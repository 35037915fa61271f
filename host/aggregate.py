"""Averaging weights: sums run in participant order, never in arrival order, so that runs repeat bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from firmware_agent.errors import ConfigurationError
from firmware_agent.exchange import Array


def weighted_mean(contributions: Sequence[tuple[float, Mapping[str, Array]]]) -> dict[str, Array]:
    """Return ``sum_i w_i x_i / sum_i w_i`` per tensor: FedAvg, McMahan et al. 2017, Algorithm 1.

    Args:
        contributions: (weight, name -> array) of each participant, in participant order; all hold the same names,
            shapes and dtypes. Sums are float64; integers and booleans are rounded back to their type.

    Raises:
        ConfigurationError: there is no participant, a weight is negative or not finite, or all weights are zero.
    """
    weights = np.array([weight for weight, _ in contributions], np.float64)
    if not len(weights) or not np.all(np.isfinite(weights)) or np.any(weights < 0) or weights.sum() == 0:
        raise ConfigurationError(
            f"cannot average with the weights {weights.tolist()}; one must be positive, none negative"
        )
    shares = weights / weights.sum()
    return {name: _mean_of(name, shares, contributions) for name in contributions[0][1]}


def _mean_of(name: str, shares: Array, contributions: Sequence[tuple[float, Mapping[str, Array]]]) -> Array:
    first = contributions[0][1][name]
    total = np.zeros(first.shape, np.float64)
    for share, (_, arrays) in zip(shares, contributions, strict=True):
        total += share * arrays[name].astype(np.float64)
    if not np.issubdtype(first.dtype, np.floating):
        total = np.rint(total)
    return total.astype(first.dtype)

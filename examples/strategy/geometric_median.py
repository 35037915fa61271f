"""Geometric median: the point with the smallest sum of distances to all drives' weights.

Pillutla et al., "Robust aggregation for federated learning" (IEEE Transactions on Signal Processing 2022), Algorithm 2.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from csd_emu.extend import Array, Contribution, Stateless, weighted_mean


class GeometricMedian(Stateless):
    """Means by turns, in which a drive that lies far from the last one counts less (Weiszfeld's algorithm)."""

    def __init__(self, turns: Annotated[int, Field(ge=1, le=100)] = 4, near: Annotated[float, Field(gt=0)] = 1e-6):
        """Take the options of the job file; their types and bounds are checked before anything starts."""
        self._turns, self._near = turns, near

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights."""
        middle = dict(global_weights)
        for _ in range(self._turns):
            far = [max(self._near, _distance(part.weights, middle)) for part in contributions]
            shares = [part.samples / distance for part, distance in zip(contributions, far, strict=True)]
            middle = weighted_mean([(share, part.weights) for share, part in zip(shares, contributions, strict=True)])
        return middle


def _distance(one: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    return sum(float(np.sum((one[name] - other[name]) ** 2, dtype=np.float64)) for name in one) ** 0.5

"""Coordinate-wise trimmed mean: a few drives that return nonsense do not spoil the model.

Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (ICML 2018), Algorithm 1.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from firmware_agent.exchange import Array
from host.strategies import Contribution, Stateless


class TrimmedMean(Stateless):
    """Of every single weight, the largest and the smallest `trim` of all drives' values are left out of the mean."""

    def __init__(self, trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2) -> None:
        """Take the options of the job file; their types and bounds are checked before anything starts."""
        self._trim = trim

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights."""
        cut = int(self._trim * len(contributions))
        kept = slice(cut, len(contributions) - cut)
        stacked = {name: np.stack([part.weights[name] for part in contributions]) for name in global_weights}
        return {name: np.sort(values, axis=0)[kept].mean(axis=0) for name, values in stacked.items()}

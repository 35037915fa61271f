"""Drives whose updates point away from what a robust strategy makes of all: left out, and named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from firmware_agent.common.slices import Array
from host.core.tensor_sums import DOT_ELEMENTS

# Of honest drives, with other labels too, updates share a direction; a flipped sign has about -0.5 or less.
AWAY_COSINE = -0.2
# So many rounds running are no chance.
AWAY_ROUNDS = 3
Weights = Mapping[str, Array]


class Directions:
    """Counts, drive by drive, the rounds running in which an update pointed away from the round's own."""

    def __init__(self, parameters: Collection[str]) -> None:
        """Look at `parameters`, the tensors that are trained."""
        self._parameters = sorted(parameters)
        self._running: Counter[str] = Counter()

    def state(self) -> dict[str, int]:
        """Return what must be kept to go on as if the run had never stopped: drive -> rounds running."""
        return {name: rounds for name, rounds in sorted(self._running.items()) if rounds}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on from `state`; of nothing, from nothing."""
        self._running = Counter({str(name): int(rounds) for name, rounds in state.items()})

    def watch(self, before: Weights, after: Weights, drives: Mapping[str, Weights]) -> dict[str, float]:
        """Return the drives, with their cosine, that point away for the `AWAY_ROUNDS`-th round running.

        Args:
            before: weights that the drives began with.
            after: what a strategy that bears hostile drives made of theirs.
            drives: name -> weights that it returned.
        """
        cosines = {name: update_cosine(before, weights, after, self._parameters) for name, weights in drives.items()}
        for name, cosine in cosines.items():
            self._running[name] = self._running[name] + 1 if cosine < AWAY_COSINE else 0
        return {name: cosine for name, cosine in cosines.items() if self._running[name] == AWAY_ROUNDS}


def update_cosine(before: Weights, one: Weights, other: Weights, names: Collection[str]) -> float:
    """Return the cosine of ``one - before`` and ``other - before`` over the tensors called `names`; 0 without one."""
    products = np.zeros(3)
    for name in names:
        start, left, right = (np.ascontiguousarray(weights[name]).reshape(-1) for weights in (before, one, other))
        for at in range(0, start.size, DOT_ELEMENTS):
            block = slice(at, at + DOT_ELEMENTS)
            with np.errstate(over="ignore", invalid="ignore"):
                u = np.subtract(left[block], start[block], dtype=np.float64)
                v = np.subtract(right[block], start[block], dtype=np.float64)
                products += np.dot(u, u), np.dot(v, v), np.dot(u, v)
    lengths = math.sqrt(products[0]) * math.sqrt(products[1]) if np.isfinite(products).all() else 0.0
    return float(products[2] / lengths) if lengths else 0.0

"""Norm clipping in front of any strategy: no drive moves the weights by more than a bound."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from firmware_agent.common.slices import Array
from host.core.tensor_sums import DOT_ELEMENTS
from host.policies.aggregation.strategy import OPTIONAL_METHODS, Contribution, Strategy


class Clipped:
    """A strategy that is given shortened updates in place of long ones.

    Sun et al., "Can you really backdoor federated learning?" (2019), section 4, norm thresholding of updates:

        ``w_k <- w + u_k / max(1, ||u_k|| / M)``,  ``u_k = w_k - w``,

    with the L2 norm over all trained parameters of the model, in float64. An update that is no longer than M goes on as
    it came, to the bit; one whose norm is no number counts as none. Buffers are not updates, and are left alone.
    """

    def __init__(self, strategy: Strategy, update_norm: float, parameters: Collection[str]) -> None:
        """Put the bound M = `update_norm`, in units of the weights, in front of `strategy`."""
        self._strategy, self._update_norm, self._parameters = strategy, update_norm, frozenset(parameters)
        self.proximal, self.least_contributions = strategy.proximal, strategy.least_contributions
        for name in ("client", "counts_steps", "buffer", *OPTIONAL_METHODS):
            if hasattr(strategy, name):
                setattr(self, name, getattr(strategy, name))

    def aggregate(self, global_weights: Mapping[str, Array], contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return what the strategy makes of clipped updates (see `Strategy.aggregate`)."""
        return self._strategy.aggregate(global_weights, [self._clip(global_weights, part) for part in contributions])

    def state(self) -> dict[str, Array]:
        """Return the strategy's."""
        return self._strategy.state()

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on with the strategy's (see `Strategy.load_state`)."""
        self._strategy.load_state(state)

    def _clip(self, global_weights: Mapping[str, Array], part: Contribution) -> Contribution:
        norm = update_norm(global_weights, part.weights, self._parameters)
        if norm <= self._update_norm:
            return part
        factor = self._update_norm / norm if np.isfinite(norm) else 0.0
        shortened = {name: _shorten(global_weights[name], part.weights[name], factor) for name in self._parameters}
        return replace(part, weights={name: shortened.get(name, array) for name, array in part.weights.items()})


def update_norm(before: Mapping[str, Array], after: Mapping[str, Array], names: Collection[str]) -> float:
    """Return the L2 norm of ``after - before`` over the tensors called `names`; NaN or infinity where it has none."""
    total = 0.0
    for name in sorted(names):
        one, other = (np.ascontiguousarray(weights[name]).reshape(-1) for weights in (before, after))
        for start in range(0, one.size, DOT_ELEMENTS):
            block = slice(start, start + DOT_ELEMENTS)
            with np.errstate(over="ignore", invalid="ignore"):
                update = np.subtract(other[block], one[block], dtype=np.float64)
                total += float(np.dot(update, update))
    return math.sqrt(total)


def _shorten(before: Array, after: Array, factor: float) -> Array:
    """Return ``before + factor (after - before)`` in the weights' type; `before` if the factor is 0."""
    if not factor:
        return before
    start = before.astype(np.float64)
    start += factor * np.subtract(after, start)
    return start.astype(before.dtype)

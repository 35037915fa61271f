"""Krum and Multi-Krum: the weights of the drives that lie nearest to the others."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from firmware_agent.common.slices import Array
from host.config.plugins.kinds import STRATEGY
from host.core.tensor_sums import DOT_ELEMENTS, weighted_mean
from host.policies.aggregation.median import trimmed_mean
from host.policies.aggregation.strategy import Contribution, Stateless, check_count

Weights = Mapping[str, Array]
Hostile = Annotated[int, Ge(0), Le(10_000)]


@STRATEGY.register(
    "multi_krum",
    "The mean of the `keep` drives that lie nearest to the others, of which `hostile` may be hostile.",
)
class MultiKrum(Stateless):
    """Multi-Krum, which is Krum with one drive kept.

    Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient descent" (NIPS 2017), section 4:
    of n drives, f of them hostile, each has the score

        ``s(i) = sum_{i -> j} ||w_i - w_j||^2``,

    over the n - f - 2 drives j nearest to it. Krum takes the weights with the smallest score, Multi-Krum the mean of
    the m with the smallest. With ``n > 2f + 2`` (Proposition 4.2) and honest weights within r of a point, what is
    chosen lies within ``r + 2r sqrt((n - f - 2) / (n - 2f - 1))`` of it. Distances are over the trained parameters of a
    whole model, in float64, and drives count the same whatever their samples, since a number of samples is a drive's
    word. Buffers, whose values say nothing of an update, are each the trimmed mean that discards f at both ends.
    Weights that are not finite are infinitely far from all others. Equal scores are put in order by the weights'
    SHA-256, so that the order of drives is nothing to the result.
    """

    def __init__(
        self,
        hostile: Hostile = 1,
        keep: Annotated[int, Ge(1), Le(100_000)] | None = None,
        *,
        parameters: Collection[str],
    ) -> None:
        """Choose by `parameters`.

        Args:
            hostile: drives that may return anything (f).
            keep: drives whose mean is taken (m, at most n - f; 1 is Krum); null for all but `hostile` + 2.
            parameters: names of the tensors that are trained.
        """
        self._hostile, self._keep, self._parameters = hostile, keep, frozenset(parameters)
        self.least_contributions = max(2 * hostile + 3, hostile + (keep or 0))

    def aggregate(self, global_weights: Weights, contributions: Sequence[Contribution]) -> dict[str, Array]:
        """Return the new weights (see `Strategy.aggregate`)."""
        check_count(self, contributions)
        trained = [self._part(part.weights, trained=True) for part in contributions]
        buffers = trimmed_mean([self._part(part.weights, trained=False) for part in contributions], self._hostile)
        neighbours = len(contributions) - self._hostile - 2
        ranking = rank(trained, neighbours)[: neighbours if self._keep is None else self._keep]
        mean = weighted_mean([(1, trained[index]) for index in ranking])
        return {name: buffers[name] if name in buffers else mean[name] for name in global_weights}

    def _part(self, weights: Weights, trained: bool) -> dict[str, Array]:
        return {name: array for name, array in weights.items() if (name in self._parameters) == trained}


@STRATEGY.register(
    "krum",
    "The weights of the one drive that lies nearest to the others, of which `hostile` may be hostile.",
)
class Krum(MultiKrum):
    """Krum (see `MultiKrum`)."""

    def __init__(self, hostile: Hostile = 1, *, parameters: Collection[str]) -> None:
        """Choose by `parameters`, of which `hostile` drives may return anything."""
        super().__init__(hostile, 1, parameters=parameters)


def rank(weights: Sequence[Weights], neighbours: int) -> list[int]:
    """Return the indices of `weights` by ascending Krum score over so many nearest `neighbours`."""
    distances = squared_distances(weights)
    np.fill_diagonal(distances, np.inf)
    scores = np.sort(distances, axis=1)[:, :neighbours].sum(axis=1).tolist()
    ties = {score for score in scores if scores.count(score) > 1}
    return sorted(range(len(weights)), key=lambda i: (scores[i], _digest(weights[i]) if scores[i] in ties else b""))


def squared_distances(weights: Sequence[Weights], block_elements: int = DOT_ELEMENTS) -> npt.NDArray[np.float64]:
    """Return ``||w_i - w_j||^2`` over all tensors, (n, n), symmetric to the bit; infinite where it is no number.

    Differences are taken element by element, so that near ones are exact whatever the distance to the origin; so many
    elements of each are turned into float64 at a time, never a model.
    """
    distances = np.zeros((len(weights), len(weights)))
    for name in weights[0]:
        flat = [np.ascontiguousarray(arrays[name]).reshape(-1) for arrays in weights]
        for start in range(0, flat[0].size, block_elements):
            rows = [part[start : start + block_elements].astype(np.float64) for part in flat]
            for i, row in enumerate(rows):
                for j, other in enumerate(rows[:i]):
                    with np.errstate(over="ignore", invalid="ignore"):
                        difference = row - other
                        distances[i, j] += np.dot(difference, difference)
    distances[np.isnan(distances)] = np.inf
    return distances + distances.T


def _digest(weights: Weights) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(np.ascontiguousarray(weights[name]).tobytes())
    return digest.digest()

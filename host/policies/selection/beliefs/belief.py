"""Belief of what steps cost after trials: Bayesian non-linear regression. Pure.

Logarithms of a step's seconds and of its mean watts are the model's, of numbers that are normal a priori, and an error
that each configuration has of its own. Of the numbers the posterior is Laplace's approximation: normal about the mode,
which Gauss-Newton finds. Of a configuration that was measured the error is known as well as it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.costs.cost_model import Model
from host.policies.selection.costs.step_costs import Flags, Points

# Standard deviations of a configuration's own error, of the logarithms of time and of power.
_OWN = np.array([0.015, 0.006])
_ITERATIONS = 6
# Batches that differ by no more than this share are as good as the same.
_SAME_BATCH = 0.03


@dataclass(frozen=True)
class Data:
    """What was seen, one row per configuration with batches that was measured.

    Attributes:
        points: (rows,) them.
        outputs: (rows, 2) logarithms of step seconds and mean watts, as seen in the mean.
        errors: (rows, 2) their standard deviations.
        spikes: by what share single disturbed steps, which are not in the outputs, lengthen a step, for each device.
    """

    points: Points
    outputs: Floats
    errors: Floats
    spikes: float = 0.0


def nearly_same(batches: Counts, others: Counts) -> Flags:
    """Return which batches differ by so little that what was measured with one holds for the other."""
    return np.asarray(np.abs(batches - others) <= np.maximum(1, _SAME_BATCH * others))


class Belief:
    """What is believed after what was seen.

    Attributes:
        model: what costs follow from numbers.
        mode: (numbers,) the likeliest ones.
    """

    def __init__(self, model: Model, data: Data) -> None:
        """Update the model's prior by the data."""
        self.model, self._data = model, data
        self.mode: Floats = np.zeros(model.layout.size)
        # The covariance of the numbers is this by its transpose.
        self._factor = np.diag(model.prior())
        self._variances = _OWN**2 + data.errors**2
        self._residuals = self._find_mode(data)

    def _find_mode(self, data: Data) -> Floats:
        """Gauss-Newton; a step that does not improve is halved. Return (rows, 2) what the mode leaves unexplained."""
        precise = 1 / self.model.prior() ** 2
        best, step, theta = np.inf, np.zeros_like(self.mode), self.mode
        residuals = data.outputs
        for _ in range(_ITERATIONS):
            values, slopes = self.model.slopes(theta, data.points)
            left = data.outputs - values
            value = float((left**2 / self._variances).sum() + (theta**2 * precise).sum())
            if value > best + 1e-9:
                step = step / 2
                theta = self.mode + step
                continue
            improved, best, self.mode, residuals = best - value, value, theta, left
            weighted = slopes / self._variances[..., None]
            precision = np.einsum("roi,roj->ij", weighted, slopes) + np.diag(precise)
            if improved < 1e-3:
                break
            step = np.linalg.solve(precision, np.einsum("roi,ro->i", weighted, left) - theta * precise)
            theta = self.mode + step
        self._factor = np.linalg.inv(np.linalg.cholesky(precision)).T
        return residuals

    def means(self, points: Points) -> tuple[Floats, Floats]:
        """Return (rows, 2) expected logarithms of step seconds and watts, and (rows,) records of a step."""
        costs = self.model.costs(self.mode, points)
        spiked = costs.seconds * (1 + self._data.spikes * points.counts.sum(axis=1))
        known, residuals = self._measured(points)
        values = np.stack([np.log(spiked), np.log(costs.joules / costs.seconds)], axis=1) + known * residuals
        return values, costs.records

    def errors(self, points: Points) -> tuple[Floats, Floats]:
        """Return how far the logarithms may be off: by standard normal numbers, all independent.

        Returns:
            (rows, 2, numbers) of those that all configurations share, (rows, 2) of each one's own.
        """
        shared = self.model.slopes(self.mode, points)[1] @ self._factor
        known, _ = self._measured(points)
        return shared * (1 - known[..., None]), _OWN * np.sqrt(1 - known)

    def _measured(self, points: Points) -> tuple[Floats, Floats]:
        """Return (rows, 2) how much of each one's own error is known, from 0 to 1, and what it was.

        It is that of the configuration with hardly other batches too: all that were measured count by their precision.
        """
        weights, sums = np.zeros((2, len(points), 2))
        seen, precise = self._data.points, 1 / self._data.errors**2
        for counts, batches, weight, own in zip(seen.counts, seen.batches, precise, self._residuals, strict=True):
            same = (points.counts == counts) & nearly_same(points.batches, batches)
            weights[rows := same.all(axis=1)] += weight
            sums[rows] += weight * own
        return weights / (weights + 1 / _OWN**2), sums / np.maximum(weights, 1e-300)

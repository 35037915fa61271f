"""What is believed of costs after what was seen. Pure.

A step beyond the model has a random effect of its own: configurations that are alike err alike (a Gaussian process),
and one that was measured is believed rather than the model. What is seen updates all of it at once: Gauss-Newton to the
mode, and there the linear-normal conditional.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from host.planner.cluster import Counts, Floats
from host.planner.model import Model, Points

# Random effects: of time, of power, of two configurations that are alike, and of each alone.
_TIME_EFFECT, _POWER_EFFECT, _TIME_OWN, _POWER_OWN = 0.03, 0.012, 0.006, 0.003
_ITERATIONS = 6
# Of squared distances, what rounding leaves.
_SAME = 1e-9


@dataclass(frozen=True)
class Data:
    """What was seen, one row per configuration with batches that was measured.

    Attributes:
        points: (rows,) them.
        outputs: (rows, 2) logarithms of step seconds and mean watts, as seen in the mean.
        errors: (rows, 2) their standard deviations.
        steps: (rows,) how many steps.
    """

    points: Points
    outputs: Floats
    errors: Floats
    steps: Counts


def alike(first: Points, other: Points, devices: Floats) -> tuple[Floats, Floats]:
    """Return (rows, rows) how alike configurations are, from 0 to 1, and whether they are the same."""
    share = np.sqrt(2.0) / np.maximum(devices, 1.0)
    one = np.concatenate([first.counts * share, (first.counts > 0) * 1.0], axis=1)
    two = np.concatenate([other.counts * share, (other.counts > 0) * 1.0], axis=1)
    distance = np.square(one) @ np.ones((one.shape[1], 1)) + np.square(two).sum(axis=1) - 2 * one @ two.T
    logs, other_logs = np.log(np.maximum(first.batches, 1)), np.log(np.maximum(other.batches, 1))
    apart = np.zeros_like(distance)
    for kind in range(first.counts.shape[1]):
        both = (first.counts[:, kind] > 0)[:, None] & (other.counts[:, kind] > 0)
        np.maximum(apart, both * np.abs(logs[:, kind][:, None] - other_logs[:, kind]), out=apart)
    distance = np.maximum(distance + 4 * apart**2, 0.0)
    return np.exp(-distance / 2), distance < _SAME


class Belief:
    """What is believed after what was seen."""

    def __init__(self, model: Model, data: Data | None) -> None:
        """Update the model's prior by the data; None for none."""
        self.model, self.data = model, data
        self._prior = model.prior() ** 2
        self.mode: Floats = np.zeros(model.layout.size)
        if data is not None and len(data.points):
            self._covariance = self._effects(data.points, data.points) + np.diag(data.errors.T.ravel() ** 2)
            self._find_mode(data)

    def _effects(self, first: Points, other: Points) -> Floats:
        """Return covariances of random effects, (2 rows, 2 rows): all of time, then all of power."""
        near, same = alike(first, other, self.model.figures.devices)
        zero = np.zeros_like(near)
        time = _TIME_EFFECT**2 * near + _TIME_OWN**2 * same
        power = _POWER_EFFECT**2 * near + _POWER_OWN**2 * same
        return np.block([[time, zero], [zero, power]])

    def _observe(self, data: Data, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """Return residuals of all that was seen, how predictions change with each number, and covariances."""
        values, slopes = self.model.slopes(theta, data.points)
        change = slopes.transpose(1, 0, 2).reshape(-1, len(theta))
        return (data.outputs - values).T.ravel(), change, self._covariance

    def _find_mode(self, data: Data) -> None:
        """Gauss-Newton; a step that does not improve is halved."""
        best = np.inf
        theta, step = self.mode, np.zeros_like(self.mode)
        for _ in range(_ITERATIONS):
            residual, change, covariance = self._observe(data, theta)
            factor = cho_factor(covariance)
            value = float(residual @ cho_solve(factor, residual) + (theta**2 / self._prior).sum())
            if value > best + 1e-9:
                step = step / 2
                theta = self.mode + step
                continue
            improved, best, self.mode = best - value, value, theta
            self._at = residual, change, covariance
            if improved < 1e-3:
                break
            solved = cho_solve(factor, change)
            precision = change.T @ solved + np.diag(1 / self._prior)
            gradient = solved.T @ residual - theta / self._prior
            step = np.linalg.solve(precision, gradient)
            theta = self.mode + step

    @property
    def seen(self) -> bool:
        """Whether there is any data."""
        return self.data is not None and len(self.data.points) > 0

    def means(self, points: Points) -> tuple[Floats, Floats]:
        """Return (rows, 2) expected logarithms of step seconds and watts, and (rows,) records of a step."""
        costs = self.model.costs(self.mode, points)
        values = np.stack([np.log(costs.seconds), np.log(costs.joules / costs.seconds)], axis=1)
        if self.seen and self.data is not None:
            residual = self._at[0]
            rows = 2 * len(self.data.points)
            # At the mode the numbers explain what they can; what is left is random effects.
            weights = cho_solve(cho_factor(self._covariance), residual[:rows])
            values = values + (self._effects(points, self.data.points) @ weights).reshape(2, -1).T
        return values, costs.records

    def variances(self, points: Points) -> Floats:
        """Return (rows, 2, 2) covariance of each configuration's logarithms of time and power."""
        _, slopes = self.model.slopes(self.mode, points)
        effects = np.diag([_TIME_EFFECT**2 + _TIME_OWN**2, _POWER_EFFECT**2 + _POWER_OWN**2])
        prior = (slopes * self._prior) @ slopes.transpose(0, 2, 1) + effects
        if not self.seen or self.data is None:
            return np.asarray(prior)
        _, change, covariance = self._at
        count, rows = len(points), 2 * len(self.data.points)
        cross = (slopes.transpose(1, 0, 2).reshape(2 * count, -1) * self._prior) @ change.T
        cross[:, :rows] += self._effects(points, self.data.points)
        solved = cho_solve(cho_factor((change * self._prior) @ change.T + covariance), cross.T)
        by_row, solved = cross.reshape(2, count, -1), solved.reshape(-1, 2, count)
        return np.asarray(prior - np.einsum("irk,kjr->rij", by_row, solved))

    def joint(self, points: Points) -> Floats:
        """Return the covariance of the logarithms, (2 rows, 2 rows): all of time, then all of power."""
        _, slopes = self.model.slopes(self.mode, points)
        jacobian = slopes.transpose(1, 0, 2).reshape(-1, self.model.layout.size)
        prior = (jacobian * self._prior) @ jacobian.T + self._effects(points, points)
        if not self.seen or self.data is None:
            return prior
        _, change, covariance = self._at
        cross = (jacobian * self._prior) @ change.T
        rows = 2 * len(self.data.points)
        cross[:, :rows] += self._effects(points, self.data.points)
        total = (change * self._prior) @ change.T + covariance
        return np.asarray(prior - cross @ cho_solve(cho_factor(total), cross.T))

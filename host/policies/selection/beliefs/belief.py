"""Beliefs of costs after observations. Pure.

A step beyond the model has a random effect of its own: configurations that are alike err alike (a Gaussian process),
and one that was measured is believed rather than the model. What is seen updates all of it at once: Gauss-Newton to the
mode, and there the linear-normal conditional.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.costs.cost_model import Model
from host.policies.selection.costs.step_costs import Points

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
    if first.groups is None:
        apart = _batches_apart(first, other)
    else:
        groups = np.zeros(int(first.groups.max()) + 1, np.int64)
        groups[first.groups] = np.arange(len(first))
        apart = _batches_apart(first.take(groups), other)[first.groups]
    distance = np.maximum(distance + apart, 0.0)
    return np.exp(-distance / 2), distance < _SAME


def _batches_apart(first: Points, other: Points) -> Floats:
    """Return (rows, rows) how far batches are from each other: of the kind of both where they are farthest."""
    logs, other_logs = np.log(np.maximum(first.batches, 1)), np.log(np.maximum(other.batches, 1))
    apart = np.zeros((len(first), len(other)))
    for kind in range(first.counts.shape[1]):
        both = (first.counts[:, kind] > 0)[:, None] & (other.counts[:, kind] > 0)
        np.maximum(apart, both * np.abs(logs[:, kind][:, None] - other_logs[:, kind]), out=apart)
    return 4 * apart**2


class Belief:
    """What is believed after what was seen."""

    def __init__(self, model: Model, data: Data | None) -> None:
        """Update the model's prior by the data; None for none."""
        self.model = model
        self._data = data if data is not None and len(data.points) else None
        self._prior = model.prior() ** 2
        self.mode: Floats = np.zeros(model.layout.size)
        if self._data is not None:
            self._find_mode(self._data)

    def _effects(self, first: Points, other: Points) -> Floats:
        """Return covariances of random effects, (2 rows, 2 rows): all of time, then all of power."""
        effects = np.zeros((2 * len(first), 2 * len(other)))
        for output, part in enumerate(self._effects_of(first, other)):
            here, there = (slice(output * len(each), (output + 1) * len(each)) for each in (first, other))
            effects[here, there] = part
        return effects

    def _effects_of(self, first: Points, other: Points) -> tuple[Floats, Floats]:
        """Return covariances of random effects of time, and of power, (rows, rows) each."""
        near, same = alike(first, other, self.model.figures.devices)
        return _TIME_EFFECT**2 * near + _TIME_OWN**2 * same, _POWER_EFFECT**2 * near + _POWER_OWN**2 * same

    def _find_mode(self, data: Data) -> None:
        """Gauss-Newton; a step that does not improve is halved."""
        covariance = self._effects(data.points, data.points) + np.diag(data.errors.T.ravel() ** 2)
        factor = cho_factor(covariance)
        best = np.inf
        theta, step = self.mode, np.zeros_like(self.mode)
        for _ in range(_ITERATIONS):
            values, slopes = self.model.slopes(theta, data.points)
            residual, change = (data.outputs - values).T.ravel(), _by_output(slopes)
            value = float(residual @ cho_solve(factor, residual) + (theta**2 / self._prior).sum())
            if value > best + 1e-9:
                step = step / 2
                theta = self.mode + step
                continue
            improved, best, self.mode = best - value, value, theta
            at = residual, change
            if improved < 1e-3:
                break
            solved = cho_solve(factor, change)
            precision = change.T @ solved + np.diag(1 / self._prior)
            gradient = solved.T @ residual - theta / self._prior
            step = np.linalg.solve(precision, gradient)
            theta = self.mode + step
        residual, self._change = at
        # At the mode the numbers explain what they can; what is left is random effects.
        self._left = cho_solve(factor, residual).reshape(2, -1)
        self._seen = cho_factor((self._change * self._prior) @ self._change.T + covariance)

    def means(self, points: Points) -> tuple[Floats, Floats]:
        """Return (rows, 2) expected logarithms of step seconds and watts, and (rows,) records of a step."""
        costs = self.model.costs(self.mode, points)
        values = np.stack([np.log(costs.seconds), np.log(costs.joules / costs.seconds)], axis=1)
        if self._data is not None:
            effects = self._effects_of(points, self._data.points)
            values = values + np.stack([own @ left for own, left in zip(effects, self._left, strict=True)], axis=1)
        return values, costs.records

    def slopes(self, points: Points) -> Floats:
        """Return (rows, 2, numbers) how the logarithms change with each number that is believed."""
        return self.model.slopes(self.mode, points)[1]

    def variances(self, points: Points, slopes: Floats) -> Floats:
        """Return (rows, 2, 2) covariance of each configuration's logarithms of time and power; `slopes` are theirs."""
        effects = np.diag([_TIME_EFFECT**2 + _TIME_OWN**2, _POWER_EFFECT**2 + _POWER_OWN**2])
        prior = (slopes * self._prior) @ slopes.transpose(0, 2, 1) + effects
        if self._data is None:
            return np.asarray(prior)
        cross, solved = self._explained(self._data, points, _by_output(slopes))
        count = len(points)
        return np.asarray(prior - np.einsum("irk,kjr->rij", cross.reshape(2, count, -1), solved.reshape(-1, 2, count)))

    def joint(self, points: Points, slopes: Floats) -> Floats:
        """Return the covariance of the logarithms, (2 rows, 2 rows): all of time, then all of power."""
        jacobian = _by_output(slopes)
        prior = (jacobian * self._prior) @ jacobian.T + self._effects(points, points)
        if self._data is None:
            return prior
        cross, solved = self._explained(self._data, points, jacobian)
        return np.asarray(prior - cross @ solved)

    def _explained(self, data: Data, points: Points, jacobian: Floats) -> tuple[Floats, Floats]:
        """Return the covariance C with what was seen, (2 rows, seen), and V^-1 C^T with the variance V of that.

        Args:
            data: what was seen.
            points: (rows,) configurations.
            jacobian: (2 rows, numbers) of them.
        """
        cross = (jacobian * self._prior) @ self._change.T + self._effects(points, data.points)
        return cross, cho_solve(self._seen, cross.T)


def _by_output(slopes: Floats) -> Floats:
    """Return (2 rows, numbers), all of time, then all of power, of (rows, 2, numbers)."""
    return slopes.transpose(1, 0, 2).reshape(-1, slopes.shape[2])


class Slopes:
    """Slopes of some configurations, worked out when they are first asked for."""

    def __init__(self, belief: Belief, points: Points) -> None:
        """Take whose they are."""
        self._belief, self._points = belief, points
        self._place = np.full(len(points), -1)
        self._known: Floats = np.empty((0, 2, belief.model.layout.size))

    def at(self, rows: Counts) -> Floats:
        """Return (rows, 2, numbers) slopes, see `Belief.slopes`."""
        new = np.unique(rows[self._place[rows] < 0])
        if len(new):
            self._place[new] = len(self._known) + np.arange(len(new))
            self._known = np.concatenate([self._known, self._belief.slopes(self._points.take(new))])
        return np.asarray(self._known[self._place[rows]])

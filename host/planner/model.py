"""What a configuration costs, from numbers that are believed within bounds and corrected by what is seen. Pure.

The numbers (`Layout`) are factors of what tables and profiles say, on a logarithmic scale, normal a priori. A step
beyond the model has a random effect of its own: configurations that are alike err alike (a Gaussian process), and one
that was measured is believed rather than the model. What is seen updates all of it at once: Gauss-Newton to the mode,
and there the linear-normal conditional.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from host.planner.cluster import Counts, Floats
from host.planner.cost import Corrections, Figures, StepCosts, step_costs, table_seconds
from host.planner.curves import Curve, PaceTables
from host.tuning.speed import SpeedTable

# Prior standard deviations. Of factors they are relative.
_ACTIVE, _IDLE, _REDUCE, _BANDWIDTH = 0.2, 0.1, 0.2, 0.3
_CONTENTION, _OVERHEAD = 0.3, 0.02
# Random effects: of time, of power, of two configurations that are alike, and of each alone.
_TIME_EFFECT, _POWER_EFFECT, _TIME_OWN, _POWER_OWN = 0.03, 0.012, 0.006, 0.003
_ITERATIONS, _STEP = 6, 1e-2
# Of squared distances, what rounding leaves.
_SAME = 1e-9


@dataclass(frozen=True)
class Layout:
    """Where each number is in a vector of them, with `kinds` kinds.

    Per kind: `scale` and `shape` of the table (seconds are multiplied by e^scale (batch / reference)^shape), `active`
    watts. Then of all: interference that drives cause on the host's computing, the link's bandwidth and contention on
    it, overhead of a step, the host's sum, idle watts of drives and of the host.
    """

    kinds: int

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return 3 * self.kinds + 7

    def split(self, theta: Floats) -> tuple[Floats, ...]:
        """Return scale, shape, active, each (rows, kinds), then the seven others, (rows,) each."""
        k = self.kinds
        parts = theta[..., :k], theta[..., k : 2 * k], theta[..., 2 * k : 3 * k]
        return (*parts, *np.moveaxis(theta[..., 3 * k :], -1, 0))


@dataclass(frozen=True)
class Points:
    """Configurations with their batches, (rows, kinds) each."""

    counts: Counts
    batches: Counts

    def __len__(self) -> int:
        """How many."""
        return len(self.counts)

    def take(self, rows: Counts) -> Points:
        """Return some of them."""
        return Points(self.counts[rows], self.batches[rows])


@dataclass(frozen=True)
class Model:
    """The cluster with tables, and how its devices differ.

    Attributes:
        figures: of the cluster.
        curves: of each kind, as fitted to what was seen of its devices.
        paces: of devices of a kind.
        overhead_unit: seconds that an overhead of 1 is.
        unused_powered: whether drives that take no part idle.
    """

    figures: Figures
    curves: tuple[Curve, ...]
    paces: PaceTables
    overhead_unit: float
    unused_powered: bool

    @property
    def layout(self) -> Layout:
        """Where each number is."""
        return Layout(len(self.curves))

    @property
    def tables(self) -> list[SpeedTable]:
        """Of each kind."""
        return [curve.table for curve in self.curves]

    def prior(self) -> Floats:
        """Return standard deviations of all numbers; their means are 0."""
        curves = self.curves
        interference = max((curve.interference_error for curve in curves), default=0.0)
        rest = [max(interference, 1e-6), _BANDWIDTH, _CONTENTION, _OVERHEAD, _REDUCE, _IDLE, _IDLE]
        scale, shape = [curve.scale for curve in curves], [curve.shape for curve in curves]
        return np.array([*scale, *shape, *[_ACTIVE] * len(curves), *rest])

    def log_slowdowns(self, theta: Floats, points: Points) -> Floats:
        """Return (rows, kinds) logarithms of compute seconds over the tables'."""
        scale, shape, _, interference, *_ = self.layout.split(theta)
        all_drives = max(1.0, float((self.figures.devices * self.figures.drive).sum()))
        drives = points.counts @ (self.figures.drive / all_drives)
        relative = np.log(np.maximum(points.batches, 1) / np.array([curve.reference for curve in self.curves]))
        known = np.array([curve.interference for curve in self.curves])
        slowed = drives[:, None] * (known + interference[:, None] * ~self.figures.drive)
        # Beyond an e-folding a curve is no surer and no less sure: it is off by as much again.
        return np.asarray(scale + shape * np.clip(relative, -2.0, 2.0) + slowed)

    def compute_seconds(self, theta: Floats, points: Points) -> Floats:
        """Return (rows, kinds) seconds in which a typical device computes its batch."""
        theta = np.broadcast_to(theta, (len(points), self.layout.size))
        return table_seconds(self.tables, points.batches) * np.exp(self.log_slowdowns(theta, points))

    def costs(self, theta: Floats, points: Points) -> StepCosts:
        """Return what a step costs.

        Args:
            theta: (numbers,) for all rows, or (rows, numbers).
            points: (rows,) configurations.
        """
        theta = np.broadcast_to(theta, (len(points), self.layout.size))
        middle, paces = self.paces.paces(points.counts)
        slowdowns = np.exp(self.log_slowdowns(theta, points)) * middle
        return step_costs(
            self.figures,
            points.counts,
            points.batches,
            table_seconds(self.tables, points.batches) * slowdowns,
            slowdowns,
            paces,
            self.corrections(theta, points.counts),
            self.unused_powered,
        )

    def corrections(self, theta: Floats, counts: Counts) -> Corrections:
        """Return what is believed beyond the profiles; `theta` and `counts` (rows, ..)."""
        _, _, active, _, bandwidth, contention, overhead, reduce, idle_drives, idle_host = self.layout.split(theta)
        others = np.maximum(counts @ (self.figures.drive * 1.0) - 1, 0)
        most = max(1.0, float((self.figures.devices * self.figures.drive).sum()) - 1)
        return Corrections(
            np.exp(bandwidth) / np.maximum(1 + contention * others / most, 0.2),
            overhead * self.overhead_unit,
            np.exp(reduce),
            np.exp(active),
            np.exp(idle_drives),
            np.exp(idle_host),
        )

    def outputs(self, theta: Floats, points: Points) -> Floats:
        """Return (rows, 2) logarithms of step seconds and of mean watts."""
        costs = self.costs(theta, points)
        seconds = np.maximum(costs.seconds, 1e-12)
        return np.stack([np.log(seconds), np.log(np.maximum(costs.joules, 1e-12) / seconds)], axis=1)

    def slopes(self, theta: Floats, points: Points) -> tuple[Floats, Floats]:
        """Return (rows, 2) outputs, and (rows, 2, numbers) how they change with each number."""
        size, rows = self.layout.size, len(points)
        steps = np.concatenate([np.zeros((1, size)), np.eye(size) * _STEP])
        every = np.repeat(theta + steps, rows, axis=0)
        repeated = points.take(np.tile(np.arange(rows), size + 1))
        values = self.outputs(every, repeated).reshape(size + 1, rows, 2)
        return values[0], np.moveaxis((values[1:] - values[0]) / _STEP, 0, -1)


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

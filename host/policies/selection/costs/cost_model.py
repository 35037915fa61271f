"""Cost model of a configuration, with uncertain parameters. Pure.

The numbers (`ParameterLayout`) are factors of what tables and profiles say, on a logarithmic scale, normal a priori.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.cluster import Cluster, Counts, DeviceKind, Floats
from host.policies.selection.costs.speed_curves import PaceTables, SecondsCurve
from host.policies.selection.costs.step_costs import Corrections, Figures, Points, StepCosts, step_costs, table_seconds

# Prior standard deviations. Of factors they are relative.
_ACTIVE, _IDLE, _REDUCE, _BANDWIDTH = 0.2, 0.1, 0.2, 0.3
_CONTENTION, _OVERHEAD = 0.3, 0.02
# By how much a number is changed to see what comes of it.
_STEP = 1e-2


@dataclass(frozen=True)
class ParameterLayout:
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


def _grown(table: SpeedTable, here: DeviceKind, there: DeviceKind) -> SpeedTable:
    """Return a kind's table at an end of the bands; encoding, which one core does alone, grows by itself."""
    seconds, encode_seconds = table.step_seconds, max(here.encode_seconds, 1e-12)
    computing = np.maximum(seconds - encode_seconds, 0.0) * there.growth
    return replace(table, step_seconds=computing + np.minimum(seconds / encode_seconds, 1.0) * there.encode_seconds)


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
    curves: tuple[SecondsCurve, ...]
    paces: PaceTables
    overhead_unit: float
    unused_powered: bool

    @property
    def layout(self) -> ParameterLayout:
        """Where each number is."""
        return ParameterLayout(len(self.curves))

    @property
    def tables(self) -> list[SpeedTable]:
        """Of each kind."""
        return [curve.table for curve in self.curves]

    def at(self, cluster: Cluster) -> Model:
        """Return the model with the figures of `cluster`, the same at one end of the profiles' bands."""
        each = zip(self.curves, self.figures.cluster.kinds, cluster.kinds, strict=True)
        curves = tuple(replace(curve, table=_grown(curve.table, here, there)) for curve, here, there in each)
        return replace(self, figures=Figures.of(cluster), curves=curves)

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
        known = np.array([curve.interference for curve in self.curves])
        slowed = drives[:, None] * (known + interference[:, None] * ~self.figures.drive)
        return np.asarray(scale + shape * points.of_groups(self._log_batches) + slowed)

    def _log_batches(self, batches: Counts) -> Floats:
        """Return (rows, kinds) logarithms of batches over the reference."""
        relative = np.log(np.maximum(batches, 1) / np.array([curve.reference for curve in self.curves]))
        # Beyond an e-folding a curve is no surer and no less sure: it is off by as much again.
        return np.asarray(np.clip(relative, -2.0, 2.0))

    def compute_seconds(self, theta: Floats, points: Points) -> Floats:
        """Return (rows, kinds) seconds in which a typical device computes its batch."""
        theta = np.atleast_2d(theta)
        return table_seconds(self.tables, points.batches) * np.exp(self.log_slowdowns(theta, points))

    def costs(self, theta: Floats, points: Points) -> StepCosts:
        """Return what a step costs.

        Args:
            theta: (numbers,) for all rows, or (rows, numbers).
            points: (rows,) configurations.
        """
        theta = np.atleast_2d(theta)
        middle, paces = self.paces.paces(points.counts)
        slowdowns = np.exp(self.log_slowdowns(theta, points)) * middle
        return step_costs(
            self.figures,
            points,
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
        every = np.repeat(theta + np.concatenate([np.zeros((1, size)), np.eye(size) * _STEP]), rows, axis=0)
        values = self.outputs(every, points.take(np.tile(np.arange(rows), size + 1))).reshape(size + 1, rows, 2)
        return values[0], np.moveaxis((values[1:] - values[0]) / _STEP, 0, -1)

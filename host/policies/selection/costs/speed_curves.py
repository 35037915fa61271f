"""Speeds of devices and their differences: from tables, and from what was seen of each node. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from csd_emu.perfmodel.kind_steps import Paces
from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.cluster import Counts, DeviceKind, Floats

# Relative standard deviations before anything is seen, and for how many values they count: of a node's steps, of the
# nodes of a kind.
_STEP_NOISE, _NODE_SPREAD, _WORTH = 0.02, 0.01, 4.0
# Relative standard deviations of a kind's curve against its table before anything is seen: of a factor, of a power of
# the batch, of bends (knees, other kernels) over e-foldings of the batch; what drives slow a host that trains down; and
# of what is seen at a batch, beyond noise.
_SCALE, _SCALE_UNKNOWN, _SHAPE, _SHAPE_UNKNOWN = 0.3, 1.5, 0.1, 0.5
_BEND, _BEND_LENGTH, _INTERFERENCE, _LEAST_ERROR = 0.04, 1.0, 0.1, 0.003
# A kind without a table: so many seconds of a step and of a record on one core of 1 GHz; believed within a factor.
_UNKNOWN_STEP_SECONDS, _UNKNOWN_RECORD_SECONDS, _UNKNOWN_LARGEST = 0.02, 0.02, 1024


def table_of(kind: DeviceKind) -> SpeedTable:
    """Return the kind's table, or a straight line that its cores suggest if there is none."""
    if kind.speed is not None:
        return kind.speed
    profile = kind.profile
    speed = profile.cores.value * profile.clock_hertz.value * profile.instructions_per_cycle.value / 1e9
    batches = np.arange(1, _UNKNOWN_LARGEST + 1)
    seconds = (_UNKNOWN_STEP_SECONDS + _UNKNOWN_RECORD_SECONDS * batches) / max(speed, 1e-9)
    return SpeedTable(kind.name, seconds.astype(np.float64))


@dataclass(frozen=True)
class NodeSteps:
    """What one node did in one trial, as logarithms of seconds over the table's.

    Attributes:
        steps: how many.
        mean: of them.
        squares: sum of squared deviations from it.
    """

    steps: int
    mean: float
    squares: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> NodeSteps:
        """Return what it did."""
        mean = math.fsum(ratios) / len(ratios)
        return cls(len(ratios), mean, math.fsum((each - mean) ** 2 for each in ratios))


# What was seen of one node: of each trial its steps, and what a typical device of its kind did in it.
NodeLog = list[tuple[NodeSteps, float]]


def deviations_of(logs: list[NodeLog]) -> Floats:
    """Return (nodes,) logarithms of how much longer each takes than the kind's typical device.

    Random effects, shrunk to the kind's mean (empirical Bayes).

    Args:
        logs: one per node, empty for one that was not seen.
    """
    squares = freedom = 0.0
    means, weights = np.zeros(len(logs)), np.zeros(len(logs))
    for number, log in enumerate(logs):
        squares += sum(own.squares for own, _ in log)
        freedom += sum(own.steps - 1 for own, _ in log)
        weights[number] = sum(own.steps for own, _ in log)
        means[number] = sum(own.steps * (own.mean - level) for own, level in log)
    noise = (_WORTH * _STEP_NOISE**2 + squares) / (_WORTH + freedom)
    seen = weights > 0
    means[seen] /= weights[seen]
    sums = float((means[seen] ** 2 - noise / weights[seen]).sum()) if seen.any() else 0.0
    between = max(_WORTH * _NODE_SPREAD**2 + sums, 1e-8) / (_WORTH + max(0.0, float(seen.sum()) - 1))
    variance = np.divide(noise, weights, out=np.full(len(logs), np.inf), where=seen)
    return np.asarray(means * between / (between + variance))


@dataclass(frozen=True)
class PaceTables:
    """Mean, slowest and quickest of the first n devices of each kind, (kinds, most devices + 1): indexed by n.

    Attributes:
        middle: over the kind's typical device.
        late, early: over `middle`.
    """

    middle: Floats
    late: Floats
    early: Floats

    @classmethod
    def of(cls, deviations: Sequence[Floats]) -> PaceTables:
        """Return the tables; the deviations of each kind's nodes are in the order in which these are taken."""
        tables = cls(*np.ones((3, len(deviations), max(map(len, deviations), default=0) + 1)))
        for kind, own in enumerate(deviations):
            values, first = np.exp(own), slice(1, len(own) + 1)
            tables.middle[kind, first] = np.cumsum(values) / np.arange(1, len(own) + 1)
            tables.late[kind, first] = np.maximum.accumulate(values) / tables.middle[kind, first]
            tables.early[kind, first] = np.minimum.accumulate(values) / tables.middle[kind, first]
        return tables

    def paces(self, counts: Counts) -> tuple[Floats, Paces]:
        """Return (configurations, kinds) how much longer than typical the first n take in the mean, and the rest."""
        # Taken from the flat tables: two indices would take four times as long.
        at = counts + self.middle.shape[1] * np.arange(counts.shape[1])
        middle, *paces = (each.ravel().take(at) for each in (self.middle, self.late, self.early))
        return middle, Paces(*paces)


@dataclass(frozen=True)
class SecondsCurve:
    """Seconds of a batch of one kind, as believed.

    Attributes:
        table: of a typical device, without drives that interfere.
        reference: the batch at which it is known best.
        scale: relative standard deviation of the seconds there.
        shape: by how much that grows with each e-folding of the batch away from there.
        interference: logarithm of how much longer a step takes with all drives taking part; of the host alone.
        interference_error: its standard deviation.
    """

    table: SpeedTable
    reference: float
    scale: float
    shape: float
    interference: float = 0.0
    interference_error: float = 0.0


def fit_curve(
    kind: DeviceKind,
    table: SpeedTable,
    reference: float,
    batches: Floats,
    drives: Floats,
    ratios: Floats,
    errors: Floats,
) -> SecondsCurve:
    """Return what is believed of a kind's curve: Bayesian linear regression with bends, in logarithms.

    log(seconds / table) = scale + shape log(batch / reference) + bend(batch) + interference x drives, all normal a
    priori, bends as a Gaussian process over the logarithm of the batch.

    Args:
        kind: it.
        table: what is known or guessed before.
        reference: a batch at which a table is best.
        batches: (trials,) at which it was seen.
        drives: (trials,) share of all drives that took part.
        ratios: (trials,) logarithms of seconds over the table's, of a typical device.
        errors: (trials,) their standard deviations.
    """
    known = kind.speed is not None
    prior = np.array([_SCALE if known else _SCALE_UNKNOWN, _SHAPE if known else _SHAPE_UNKNOWN]) ** 2
    slowing = _INTERFERENCE**2 if kind.local else 0.0
    if not len(batches):
        return SecondsCurve(table, reference, float(np.sqrt(prior[0])), float(np.sqrt(prior[1])), 0.0, np.sqrt(slowing))
    reference = float(batches[-1])
    at, every = np.log(batches / reference), np.log(np.arange(1, table.largest_batch + 1) / reference)

    def covariance(first: Floats, other: Floats) -> Floats:
        bends = np.exp(-(((first[:, None] - other[None]) / _BEND_LENGTH) ** 2) / 2)
        return np.asarray(prior[0] + prior[1] * np.outer(first, other) + _BEND**2 * bends)

    seen = covariance(at, at) + slowing * np.outer(drives, drives) + np.diag(errors**2 + _LEAST_ERROR**2)
    factor = cho_factor(seen)
    weights = cho_solve(factor, ratios)
    means = _hold_unseen(covariance(every, at) @ weights, batches)
    # How sure that is at the reference, and an e-folding away from it, to the side where less was seen.
    around = np.array([0.0, 1.0, -1.0])
    cross = covariance(around, at)
    variances = np.diag(covariance(around, around) - cross @ cho_solve(factor, cross.T))
    scale, *away = np.sqrt(np.maximum(variances, 1e-8)).tolist()
    left = slowing - slowing**2 * float(drives @ cho_solve(factor, drives))
    fitted = SpeedTable(table.name, np.maximum.accumulate(table.step_seconds * np.exp(means)), table.error)
    slowed = float(slowing * drives @ weights)
    return SecondsCurve(fitted, reference, scale, max(away), slowed, float(np.sqrt(max(left, 0.0))))


def _hold_unseen(means: Floats, batches: Floats) -> Floats:
    """Return (largest batch,) logarithms, of batches beyond all that were seen no less than of the nearest one.

    Else a device would be taken to be less slower than its table there, and a percent moves the knee of a flat curve
    thirtyfold.
    """
    nearest = np.clip(np.arange(1, len(means) + 1), batches.min(), batches.max()).astype(np.int64)
    return np.maximum(means, means[nearest - 1])

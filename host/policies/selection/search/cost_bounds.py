"""Bounds on the modelled time of a step, for any split of N drives over the kinds of a subset. Pure.

A split's step is a maximum over kinds, see `cost`. Whatever the split, the slowest device of a kind is no quicker than
that of its fewest, the quickest no slower than that of its most, and N sends follow the first begin.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.costs.cost_model import Model
from host.policies.selection.costs.step_costs import Flags, Points, before_computing, reduction_seconds

# E max(X, Y) of normal ones is at most the larger mean and this share of the deviation of X - Y.
_CLARK = 1 / np.sqrt(2 * np.pi)


def seconds_bounds(
    model: Model, theta: Floats, splits: Points, least: Sequence[int], most: Sequence[int]
) -> tuple[Floats, Floats]:
    """Return (rows,) the least and the most seconds of a step of any split.

    Args:
        model: with its paces.
        theta: (numbers,) what is believed.
        splits: (rows, kinds) one split for each number of drives; all of the same kinds.
        least: (kinds,) how many of each kind take part at least, 0 for one that takes none.
        most: (kinds,) at most.
    """
    figures, cluster = model.figures, model.figures.cluster
    kinds = np.flatnonzero((np.array(most) > 0) & figures.drive)
    theta = np.broadcast_to(theta, (len(splits), model.layout.size))
    low, high = _counts_within(splits.counts * figures.drive, np.array(least), np.array(most), figures.drive)
    every, paces = np.arange(len(least)), model.paces
    typical = model.compute_seconds(theta, splits)
    late_low = typical * (paces.middle * paces.late)[every, low]
    late_high = typical * (paces.middle * paces.late)[every, high]
    early = typical * (paces.middle * paces.early)[every, high]
    spread = typical * (paces.middle * paces.spread).max(axis=1)
    corrections = model.corrections(theta, splits.counts)
    drives = splits.counts @ (figures.drive * 1.0)
    fixed, each = before_computing(figures, drives, splits.batches, corrections)
    size = float(cluster.state_bytes)
    own = np.maximum(each[:, None], size / figures.path.link_bytes_per_second)
    queue = each * drives if cluster.link.shared else each
    latency = cluster.link.latency_seconds if size else 0.0
    last_low = np.maximum((fixed + late_low + own)[:, kinds].max(axis=1), (fixed + early)[:, kinds].min(axis=1) + queue)
    last_high = (fixed + late_high + np.maximum(own, queue[:, None]))[:, kinds].max(axis=1)
    slack = _CLARK * (len(least) + 1) * np.sqrt((spread[:, [*kinds, *np.flatnonzero(~figures.drive)]] ** 2).sum(axis=1))
    host = _host_seconds(model, splits, typical * paces.middle[every, low] * paces.late[every, low])
    rest = reduction_seconds(figures, splits.counts, corrections) + corrections.overhead_seconds
    return np.maximum(last_low + latency, host) + rest, np.maximum(last_high + latency, host) + slack + rest


def _counts_within(drives: Counts, low: Counts, high: Counts, drive: Flags) -> tuple[Counts, Counts]:
    """Return (rows, kinds) how many of each kind any split of so many drives has at least, and at most."""
    number = drives.sum(axis=1, keepdims=True)
    others_low, others_high = (drive @ each - each for each in (low, high))
    fewest = np.where(drive, np.maximum(low, number - others_high), low)
    most = np.where(drive, np.minimum(high, number - others_low), high)
    return np.where(high > 0, fewest, 0), np.where(high > 0, most, 0)


def _host_seconds(model: Model, splits: Points, compute: Floats) -> Floats:
    figures = model.figures
    local = splits.counts * ~figures.drive
    records = (local * splits.batches).sum(axis=1)
    reads = records * figures.cluster.record_bytes / figures.storage_bytes_per_second
    reads = reads + (records > 0) * figures.storage_latency_seconds
    return np.asarray(np.maximum(reads, (local * compute).sum(axis=1)))

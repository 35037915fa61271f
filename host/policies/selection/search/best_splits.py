"""Splits of drives over kinds of which none is better in records, joules and idle watts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.pareto import pareto_front

# So many splits of one number of drives are kept unthinned; how coarse thinning begins, and how it goes on.
MOST_KEPT, _EPSILON, _COARSER = 24, 1e-3, 2.0


@dataclass(frozen=True)
class Splits:
    """Splits over the kinds so far, (splits, ..); sums are bounds: records at least, joules and watts at most true."""

    numbers: Counts
    counts: Counts
    records: Floats
    joules: Floats
    idle: Floats

    @classmethod
    def of_nothing(cls, host: Sequence[int]) -> Splits:
        """Return the one split without drives."""
        nothing = np.zeros(1)
        return cls(np.zeros(1, np.int64), np.array([host], np.int64), nothing, nothing, nothing)

    def joined(self, kind: int, count: Counts, records: Floats, joules: Floats, idle: Floats) -> Splits:
        """Return all splits with so many of one more kind; its sums are by `count`."""
        here, there = (each.ravel() for each in np.indices((len(self.numbers), len(count))))
        counts = self.counts[here]
        counts[:, kind] = count[there]
        return Splits(
            self.numbers[here] + count[there],
            counts,
            self.records[here] + records[there],
            self.joules[here] + joules[there],
            self.idle[here] + idle[there],
        )

    def thinned(self) -> Splits:
        """Return those that none of the same number dominates; if those are too many, within a factor."""
        kept: list[tuple[Counts, float]] = []
        order = np.argsort(self.numbers, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(self.numbers[order])) + 1):
            kept.append(self._thin(rows))
        rows = np.concatenate([each for each, _ in kept])
        factor = np.concatenate([np.full(len(each), 1 + epsilon) for each, epsilon in kept])
        return Splits(
            self.numbers[rows],
            self.counts[rows],
            self.records[rows] * factor,
            self.joules[rows] / factor,
            self.idle[rows] / factor,
        )

    def _thin(self, rows: Counts) -> tuple[Counts, float]:
        values = np.stack([-self.records[rows], self.joules[rows], self.idle[rows]], axis=1)
        front = rows[_undominated(values)]
        epsilon = _EPSILON
        exact = front
        while len(front) > MOST_KEPT:
            # One of each cell: whatever falls into a cell is within the factor of whoever stands for it.
            sums = np.stack([self.records[exact], self.joules[exact], self.idle[exact]], axis=1)
            cells = np.floor(np.log(np.maximum(sums, 1e-300)) / np.log1p(epsilon))
            front = exact[np.unique(cells, axis=0, return_index=True)[1]]
            if len(front) > MOST_KEPT:
                epsilon *= _COARSER
        return front, (epsilon if len(front) < len(exact) else 0.0)


def _undominated(values: Floats) -> Counts:
    """Return numbers of the rows that no other is at most in all columns; of equal ones the first."""
    values = values[:, np.ptp(values, axis=0) > 0]
    if values.shape[1] == 0:
        return np.zeros(1, np.int64)
    if values.shape[1] == 1:
        return np.array([values[:, 0].argmin()])
    if values.shape[1] == 2:
        return pareto_front(values[:, 0], values[:, 1])
    order = np.lexsort(values.T[::-1])
    kept = np.empty(0, np.int64)
    while len(order):
        # The first one is undominated; what it dominates goes.
        kept = np.append(kept, order[0])
        order = order[(values[order] < values[order[0]]).any(axis=1)]
    return kept

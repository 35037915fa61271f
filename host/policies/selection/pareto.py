"""Pareto front: what nothing else beats in everything. Pure."""

from __future__ import annotations

import numpy as np

from host.policies.selection.cluster import Counts, Floats


def pareto_front(first: Floats, other: Floats) -> Counts:
    """Return the numbers of the points that no other dominates, the least `first` first; of equal ones the earliest.

    A point dominates another one if it is less in one value and no more in the other. With seconds T and watts P the
    front holds for energy too: E = P T (Gu et al.) is no more where neither is.

    Args:
        first: (points,) float64; less is better.
        other: (points,) float64; less is better.
    """
    order = np.lexsort((np.arange(len(first)), other, first))
    least = np.minimum.accumulate(other[order])
    keeps = np.concatenate([[True], other[order][1:] < least[:-1]])[: len(order)]
    return np.asarray(order[keeps], np.int64)

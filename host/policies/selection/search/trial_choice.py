"""Choice of the next trial: what may be better than the best, for what a trial of it costs. Pure.

A trial's worth is by how much the configuration is expected to be better than the best (`Ranking.gains`), less what its
steps cost beyond the best's. Both are shares of the whole training.
"""

from __future__ import annotations

import numpy as np

from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.search.planned_batches import subset_numbers
from host.policies.selection.search.ranking import Ranking

# How many are compared, and how many of each subset of kinds at least, so that each has its say.
_CONTENDERS, _EACH_SUBSET = 60, 2
# What is learned serves later decisions too; a gain below the least is noise.
_HORIZON, _LEAST = 2.0, 2e-4


def contenders(ranking: Ranking) -> Counts:
    """Return rows that might be the best: the best by now, the best of each subset of kinds, and near misses."""
    order = ranking.order
    subsets = subset_numbers(ranking.points.counts[order])
    # Of each subset the first few in the order: a stable sort keeps them first.
    by_subset = np.argsort(subsets, kind="stable")
    begins = np.searchsorted(subsets[by_subset], subsets[by_subset], side="left")
    own = order[by_subset[np.arange(len(order)) - begins < _EACH_SUBSET]]
    return np.unique(np.concatenate([order[:_CONTENDERS], own, ranking.near_misses()]))


def find_worthiest(gains: Floats, costs: Floats, weight: float) -> int | None:
    """Return the number of the candidate whose gain exceeds its cost by most; None if none does.

    Args:
        gains: (candidates,) expected decrease of the score by which the best of all is better after a trial.
        costs: (candidates,) of a trial, as a share of the training's time; infinite for one that cannot be taken.
        weight: of the training's time in the score.
    """
    worth = np.where(gains < _LEAST * weight, -np.inf, _HORIZON * gains - costs * weight)
    best = int(worth.argmax())
    return best if worth[best] > 0 else None

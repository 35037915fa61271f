"""Value of a trial's information, relative to the trial's cost. Pure.

A trial's value is how much better the decision is expected to be after it (the knowledge gradient of Frazier, Powell
and Dayanik 2008, on the score's normal belief); its cost is what it takes beyond the best. Both are shares. What is not
expected to keep to the constraints is worth its gain times the chance that it does (after the constrained improvement
of Schonlau, Welch and Jones 1998).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.search.planned_batches import subset_numbers
from host.policies.selection.search.ranking import Ranking
from host.policies.selection.selection_rules import SelectionRules

# How many are compared, and how many of each subset of kinds at least, so that each has its say.
_CONTENDERS, _EACH_SUBSET = 60, 2
# What is learned serves later decisions too; a value below the least is noise.
_HORIZON, _LEAST = 2.0, 2e-4
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
# Relative noise of a step's score.
_NOISE = 0.02


@dataclass(frozen=True)
class Candidates:
    """What might be tried; the best that is known of comes first.

    Attributes:
        means, covariance: of the scores, (candidates,) and (candidates, candidates).
        costs: (candidates,) of one step, beyond the best's, as a share of the training.
        steps: (candidates,) that were taken of it.
        rules: how many steps a trial has.
    """

    means: Floats
    covariance: Floats
    costs: Floats
    steps: Counts
    rules: SelectionRules


def contenders(ranking: Ranking) -> Counts:
    """Return the rows that might be the best one, the best first: the best of all, and the best of each subset."""
    order = ranking.order
    subsets = subset_numbers(ranking.points.counts[order])
    firsts = order[:_CONTENDERS]
    # Of each subset the first few in the order: a stable sort keeps them first.
    by_subset = np.argsort(subsets, kind="stable")
    begins = np.searchsorted(subsets[by_subset], subsets[by_subset], side="left")
    own = order[by_subset[np.arange(len(order)) - begins < _EACH_SUBSET]]
    more = own[~np.isin(own, firsts)]
    return np.concatenate([firsts, more])


@dataclass(frozen=True)
class Worth:
    """What is best tried of some candidates.

    Attributes:
        number: of the candidate.
        worth: by how much the decision is expected to gain more than the trial costs, above 0.
    """

    number: int
    worth: float


def most_telling(candidates: Candidates, left: float) -> Worth | None:
    """Return the candidate to try, the best one first of all; None if none is worth it, or `left` buys none.

    Args:
        candidates: what might be tried.
        left: share of the training that trials may still cost.
    """
    steps = candidates.rules.steps
    costs = candidates.costs * steps
    if not candidates.steps[0] and costs[0] <= left:
        return Worth(0, np.inf)
    means, covariance = candidates.means, candidates.covariance
    own = np.diag(covariance) + _NOISE**2 / steps
    moves = covariance / np.sqrt(np.maximum(own, 1e-18))
    # (candidates tried, candidates, points): how scores look after each trial, at points of the normal distribution.
    after = means[None, :, None] + moves.T[:, :, None] * _POINTS
    gains = (means.min() - after.min(axis=1)) @ _WEIGHTS
    return _worthiest(candidates.rules, gains, np.where(costs > left, np.inf, costs))


def most_promising(rules: SelectionRules, gains: Floats, chances: Floats, costs: Floats) -> Worth | None:
    """Return which of those to try that are not expected to keep to the constraints; None if none is worth it.

    Args:
        rules: what is preferred.
        gains: (candidates,) by how much the score is better than the best one's.
        chances: (candidates,) to keep to the constraints after all.
        costs: (candidates,) of a trial, as shares of the training; infinite for one that cannot be taken.
    """
    return _worthiest(rules, gains * chances, costs)


def _worthiest(rules: SelectionRules, gains: Floats, costs: Floats) -> Worth | None:
    """Return the candidate whose expected gain exceeds its cost by most; None if none does, or there is none."""
    if not len(gains):
        return None
    weight = rules.preference.time + rules.preference.power + rules.preference.energy
    worth = np.where(gains < _LEAST * weight, -np.inf, _HORIZON * gains - costs * weight)
    best = int(worth.argmax())
    return Worth(best, float(worth[best])) if worth[best] > 0 else None

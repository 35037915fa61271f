"""The best of more configurations than can be looked at, within a gap: branch and bound over counts of devices. Pure.

After Land and Doig (Econometrica 28, 1960). A box holds all configurations between two corners that have the same
kinds, and so the same batches. Within it more devices make no step shorter, and neither its records nor its joules for
work less: the corners bound all three, and with them the score (`Goal.bound`). Boxes that cannot hold anything better
than what was seen are dropped, the most promising others are halved.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.costs.cost_model import Model
from host.policies.selection.costs.step_costs import Points
from host.policies.selection.search.configuration_search import (
    MOST_ENUMERATED,
    Found,
    Goal,
    Space,
    enumerate_configurations,
)

# Configurations that are looked at, corners included; boxes that are halved at once; what is handed on of all.
_MOST_SEARCHED, _HALVED_AT_ONCE, _MOST_HANDED_ON = 1_000_000, 2000, 20_000
# Contention multiplies the seconds of a drive's transfers by no less (`Model.corrections`).
_LEAST_CROWDING = 0.2


def find_configurations(
    space: Space,
    model: Model,
    theta: Floats,
    goal: Goal,
    most_enumerated: int = MOST_ENUMERATED,
    most_searched: int = _MOST_SEARCHED,
) -> Found:
    """Return all configurations if there are few enough, else those that are best by the model, and the gap.

    Args:
        space: what may be chosen.
        model: what a step costs.
        theta: (numbers,) what is believed of it.
        goal: what is sought.
        most_enumerated: so many are looked at one by one.
        most_searched: of more than that, so many are looked at.
    """
    if space.size <= most_enumerated:
        return Found(enumerate_configurations(space.least, space.most), 0.0)
    return BranchAndBound(space, model, theta, goal).find(most_searched)


class BranchAndBound:
    """A search, and what it saw so far."""

    def __init__(self, space: Space, model: Model, theta: Floats, goal: Goal) -> None:
        self._space, self._model, self._theta, self._goal = space, model, theta, goal
        self._shortest, self._longest = (_extreme(model, theta, longest) for longest in (False, True))
        self._seen: list[Counts] = []
        self._scores: list[Floats] = []
        self._best = np.inf

    def find(self, room: int) -> Found:
        """Halve boxes, the one of the least bound first, until none can hold anything better, or `room` is used up."""
        low, high = first_boxes(self._space)
        corners = np.concatenate([low, high])
        self._look(corners)
        bounds = self.bounds(low, high)
        while len(low) and room > 0:
            order = np.argsort(bounds, kind="stable")
            now, later = order[:_HALVED_AT_ONCE], order[_HALVED_AT_ONCE:]
            middle = (low[now] + high[now]) // 2
            self._look(middle)
            lower, upper = _halves(low[now], high[now], middle)
            room -= 3 * len(lower)
            low, high = np.concatenate([low[later], lower]), np.concatenate([high[later], upper])
            bounds = np.concatenate([bounds[later], self.bounds(lower, upper)])
            open_boxes = bounds < self._best
            low, high, bounds = low[open_boxes], high[open_boxes], bounds[open_boxes]
        gap = self._best - float(bounds.min()) if len(bounds) else 0.0
        counts = np.concatenate(self._seen)
        order = np.argsort(np.concatenate(self._scores), kind="stable")[:_MOST_HANDED_ON]
        nearby = self._neighbours(counts[order[0]])
        return Found(np.unique(np.concatenate([counts[order], corners, nearby]), axis=0), gap)

    def bounds(self, low: Counts, high: Counts) -> Floats:
        """Return (boxes,) the least score that is possible between two corners."""
        batches = self._space.points(high).batches
        (short, least), (long, most) = self._shortest, self._longest
        fewest, all_of_them = short.costs(least, Points(low, batches)), long.costs(most, Points(high, batches))
        joules = fewest.joules - fewest.idle_watts * fewest.seconds
        seconds = fewest.seconds, all_of_them.seconds
        return self._goal.bound(all_of_them.records, joules, fewest.idle_watts, *seconds, self._space.records(low))

    def _look(self, counts: Counts) -> None:
        costs = self._model.costs(self._theta, self._space.points(counts))
        scores = self._goal.score(costs, self._space.records(counts))
        self._seen.append(counts)
        self._scores.append(scores)
        self._best = min(self._best, float(scores.min(initial=np.inf)))

    def _neighbours(self, counts: Counts) -> Counts:
        """Return configurations of one device more or less."""
        one = np.eye(len(counts), dtype=np.int64)
        near = np.clip(np.concatenate([counts + one, counts - one]), self._space.least, self._space.most)
        return np.asarray(near[near.any(axis=1)])


def first_boxes(space: Space) -> tuple[Counts, Counts]:
    """Return the corners, (boxes, kinds) each, of one box for each subset of kinds that may take part."""
    least, most = np.array(space.least, np.int64), np.array(space.most, np.int64)
    inside = np.arange(1, len(space.batches))[:, None] >> np.arange(len(most)) & 1
    inside = inside[~((inside == 0) & (least > 0) | (inside > 0) & (most == 0)).any(axis=1)]
    return inside * np.maximum(least, 1), inside * most


def _halves(low: Counts, high: Counts, middle: Counts) -> tuple[Counts, Counts]:
    """Return the corners of both halves of each box, along the kind of which it has most, as a share; points end."""
    wide = (high > low).any(axis=1)
    low, high, middle = low[wide], high[wide], middle[wide]
    at = np.arange(len(low)), ((high - low) / np.maximum(low, 1)).argmax(axis=1)
    upper, lower = high.copy(), low.copy()
    upper[at], lower[at] = middle[at], middle[at] + 1
    return np.concatenate([low, lower]), np.concatenate([upper, high])


def _extreme(model: Model, theta: Floats, longest: bool) -> tuple[Model, Floats]:
    """Return a model, and numbers, of which more devices never make a step shorter; what they say is a bound.

    The quickest of more devices is quicker: it is taken at its worst. Where drives seem to quicken the host, or each
    other's transfers, they are taken to do so all along, or never.
    """
    paces, theta = model.paces, theta.copy()
    if not longest:
        paces = replace(paces, early=(paces.early * paces.middle).min(axis=1, keepdims=True) / paces.middle)
    scale, common = theta[: model.layout.kinds], theta[3 * model.layout.kinds :]
    interference, contention = float(common[0]), float(common[2])
    curves = list(model.curves)
    for kind in np.flatnonzero(~model.figures.drive).tolist():
        quicker = min(0.0, curves[kind].interference + interference)
        curves[kind] = replace(curves[kind], interference=curves[kind].interference - quicker)
        scale[kind] += 0.0 if longest else quicker
    if contention < 0:
        common[1] -= 0.0 if longest else np.log(max(1 + contention, _LEAST_CROWDING))
        common[2] = 0.0
    return replace(model, paces=paces, curves=tuple(curves)), theta

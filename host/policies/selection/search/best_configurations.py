"""The best of more configurations than can be looked at, within a gap: dynamic programming over kinds. Pure.

For a given subset of kinds, so given batches, and a given number of drives N, records, joules for work and idle watts
of a step are sums over kinds, and a step's seconds lie between bounds that hold for every split of N (`bounds`). So for
each N only splits that no other dominates in all three sums are kept; too many of them are thinned to those that none
dominates within a factor of 1 + epsilon, and that factor is allowed for in the bound (`splits`). Where the bound says
that a better split may be among those of some N, they are looked at one by one, as far as there is room; what is left
is the gap. It is a bound, no estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.costs.cost_model import Model
from host.policies.selection.costs.step_costs import Points
from host.policies.selection.search.best_splits import MOST_KEPT, Splits
from host.policies.selection.search.configuration_search import (
    MOST_ENUMERATED,
    Found,
    Goal,
    Space,
    enumerate_configurations,
)
from host.policies.selection.search.cost_bounds import seconds_bounds

# What is handed on of a search that did not look at all.
_MOST_HANDED_ON = 20_000


def find_configurations(
    space: Space, model: Model, theta: Floats, goal: Goal, most_looked_at: int = MOST_ENUMERATED
) -> Found:
    """Return all configurations if there are few enough, else those that are best by the model, and the gap."""
    if space.size <= most_looked_at:
        return Found(enumerate_configurations(space.least, space.most), 0.0)
    return _Search(space, model, theta, goal).find(most_looked_at)


@dataclass(frozen=True)
class _Group:
    """Splits of one number of drives over the kinds of one subset."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    drives: int
    bound: float

    def splits(self, drive: Sequence[bool]) -> Counts:
        """Return all of them, (splits, kinds)."""
        partial = np.zeros((1, 0), np.int64)
        for kind, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            added = np.arange(low, high + 1)
            partial = np.column_stack([np.repeat(partial, len(added), axis=0), np.tile(added, len(partial))])
            sums = partial[:, np.flatnonzero(drive[: kind + 1])].sum(axis=1)
            after = [number for number in range(kind + 1, len(self.low)) if drive[number]]
            least, most = sum(self.low[each] for each in after), sum(self.high[each] for each in after)
            partial = partial[(sums + least <= self.drives) & (sums + most >= self.drives)]
        return partial

    def count(self, drive: Sequence[bool]) -> int:
        """Return how many there are, without making them."""
        ways = np.ones(1)
        for kind, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if drive[kind]:
                ways = np.convolve(ways, [0] * low + [1] * (high - low + 1))
        return int(min(ways[self.drives] if self.drives < len(ways) else 0, 1e15))


@dataclass(frozen=True)
class _Subset:
    """What all splits over the kinds of a subset have in common; arrays are by the number of drives, from `first` on.

    Attributes:
        low: (kinds,) fewest of each.
        high: (kinds,) most.
        first: the fewest drives.
        seconds: least and most seconds of a step.
        records: of a step, the host's.
        joules: of a step, the host's, beside idle watts.
        watts: all the time, without drives that would be off.
        kinds: of each kind of drives its number, its counts, and the sums of so many: records, joules, idle watts.
        work: records of the whole training, at least.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    first: int
    seconds: tuple[Floats, Floats]
    records: Floats
    joules: Floats
    watts: Floats
    kinds: list[tuple[int, Counts, Floats, Floats, Floats]]
    work: float

    def bounds(self, goal: Goal, rows: Counts, records: Floats, joules: Floats, idle: Floats) -> Floats:
        """Return the least score that is possible, of sums over drives."""
        least, most = self.seconds
        own = records + self.records[rows], joules + self.joules[rows], idle + self.watts[rows]
        return goal.bound(*own, least[rows], most[rows], self.work)

    def coarse(self, goal: Goal) -> float:
        """Return the least score of any split: the most records, the fewest joules and watts, each on its own."""
        every = np.arange(len(self.records))
        records, joules, idle = (self._most(number, sign) for number, sign in ((2, 1), (3, -1), (4, -1)))
        return float(self.bounds(goal, every, records, joules, idle).min())

    def _most(self, column: int, sign: int) -> Floats:
        """Return, for each number of drives, a bound of a sum: from above with a sign of 1, else from below."""
        base, more = 0.0, []
        for kind, count, *sums in self.kinds:
            each = sign * float((sign * sums[column - 2] / count).max())
            base += self.low[kind] * each
            more += [each] * (self.high[kind] - self.low[kind])
        best_first = -sign * np.sort(-sign * np.array(more))
        return np.asarray(base + np.concatenate([[0.0], np.cumsum(best_first)]))

    def splits(self) -> Splits:
        """Return those that none dominates."""
        drives = [kind for kind, *_ in self.kinds]
        splits = Splits.of_nothing([0 if kind in drives else high for kind, high in enumerate(self.high)])
        for each in self.kinds:
            splits = splits.joined(*each).thinned()
        return splits


class _Search:
    """A search, and what it saw so far."""

    def __init__(self, space: Space, model: Model, theta: Floats, goal: Goal) -> None:
        self._space, self._model, self._theta, self._goal = space, model, theta, goal
        self._drive = [bool(each) for each in model.figures.drive]
        self._seen: list[tuple[Counts, Floats]] = []
        self._best = np.inf

    def find(self, room: int) -> Found:
        """Look at splits that nothing dominates, then at all of the numbers of drives that may hide a better one."""
        corners = self._corners()
        self._look(corners)
        subsets = sorted(((each.coarse(self._goal), each) for each in self._subsets()), key=lambda pair: pair[0])
        groups: list[_Group] = []
        for bound, subset in subsets:
            if bound < self._best:
                groups += self._groups(subset)
        open_bounds = []
        for group in sorted(groups, key=lambda group: group.bound):
            if group.bound >= self._best:
                break
            if (count := group.count(self._drive)) <= room:
                room -= count
                self._look(group.splits(self._drive))
            else:
                open_bounds.append(group.bound)
        gap = max(0.0, self._best - min(open_bounds, default=np.inf)) if np.isfinite(self._best) else np.inf
        counts, scores = np.concatenate([each[0] for each in self._seen]), np.concatenate([s for _, s in self._seen])
        order = np.argsort(scores, kind="stable")[:_MOST_HANDED_ON]
        return Found(np.unique(np.concatenate([counts[order], corners]), axis=0), float(gap))

    def _look(self, counts: Counts) -> None:
        costs = self._model.costs(self._theta, self._space.points(counts))
        scores = self._goal.score(costs, self._space.records(counts))
        self._seen.append((counts, scores))
        self._best = min(self._best, float(scores.min(initial=np.inf)))

    def _corners(self) -> Counts:
        """Return the fewest and the most of each kind, in all combinations: where to begin."""
        pairs = [sorted({low, high}) for low, high in zip(self._space.least, self._space.most, strict=True)]
        every = np.stack(np.meshgrid(*pairs, indexing="ij"), axis=-1).reshape(-1, len(pairs))
        return np.asarray(every[every.sum(axis=1) > 0], np.int64)

    def _subsets(self) -> list[_Subset]:
        """Return all that have drives; the host alone is a corner."""
        subsets, drive = [], np.array(self._drive)
        least, most = np.array(self._space.least), np.array(self._space.most)
        for number in range(1, len(self._space.batches)):
            inside = (number >> np.arange(len(most)) & 1) > 0
            if (inside & drive).any() and not (inside & (most == 0)).any() and not (~inside & (least > 0)).any():
                subsets.append(self._subset(np.maximum(least, 1) * inside, most * inside, number))
        return subsets

    def _subset(self, low: Counts, high: Counts, number: int) -> _Subset:
        drives = np.flatnonzero(np.array(self._drive) & (high > 0)).tolist()
        points = self._space.points(_one_split_each(low, high, drives))
        costs = self._model.costs(self._theta, points)
        work = costs.drive_joules.sum(axis=1)
        # What does not depend on the split: the host's own part, and idle watts but those of drives that come and go.
        fixed = costs.joules - work - costs.idle_watts * costs.seconds
        always = costs.idle_watts - self._idle(points.counts)
        records = (points.counts * points.batches * ~np.array(self._drive)).sum(axis=1).astype(np.float64)
        least, most = tuple(low.tolist()), tuple(high.tolist())
        seconds = seconds_bounds(self._model, self._theta, points, least, most)
        kinds = [self._kind(kind, low, high, self._space.batches[number]) for kind in drives]
        trained = float(self._space.records(low[None])[0])
        return _Subset(least, most, int(low[drives].sum()), seconds, records, fixed, always, kinds, trained)

    def _kind(
        self, kind: int, low: Counts, high: Counts, batches: Counts
    ) -> tuple[int, Counts, Floats, Floats, Floats]:
        """Return number, counts, records, joules and idle watts of a kind."""
        count = np.arange(low[kind], high[kind] + 1)
        counts = np.zeros((len(count), len(low)), np.int64)
        counts[:, kind] = count
        costs = self._model.costs(self._theta, Points(counts, np.broadcast_to(batches, counts.shape)))
        return kind, count, costs.records, costs.drive_joules[:, kind], self._idle(counts)

    def _groups(self, subset: _Subset) -> list[_Group]:
        """Return the numbers of drives of a subset that may hold something better than is known, with their bounds."""
        splits = subset.splits()
        rows = splits.numbers - subset.first
        bounds = subset.bounds(self._goal, rows, splits.records, splits.joules, splits.idle)
        self._look(splits.counts[np.argsort(bounds, kind="stable")[: 2 * MOST_KEPT]])
        lowest = np.full(len(subset.records), np.inf)
        np.minimum.at(lowest, rows, bounds)
        better = np.flatnonzero(lowest < self._best).tolist()
        return [_Group(subset.low, subset.high, subset.first + row, float(lowest[row])) for row in better]

    def _idle(self, counts: Counts) -> Floats:
        """Return (rows,) idle watts of the drives that take part, if others draw nothing; else 0."""
        if self._model.unused_powered:
            return np.zeros(len(counts))
        watts = self._model.figures.power.idle_watts * self._drive * self._model.idle_factor(self._theta)
        return np.asarray(counts @ watts)


def _one_split_each(low: Counts, high: Counts, drives: Sequence[int]) -> Counts:
    """Return (numbers of drives, kinds) one split of each number from the fewest to the most."""
    others = np.array([0 if kind in drives else int(count) for kind, count in enumerate(high)])
    left = np.arange(int((high - low)[list(drives)].sum()) + 1)
    counts = np.tile(np.where(others > 0, others, low), (len(left), 1))
    for kind in drives:
        more = np.minimum(left, high[kind] - low[kind])
        counts[:, kind] += more
        left = left - more
    return np.asarray(counts, np.int64)

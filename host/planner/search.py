"""Every configuration there is, by symmetry; and where those are too many, the best of them within a gap. Pure.

Of equal devices only the number matters: that leaves the product of (n_k + 1) configurations, each of which is looked
at where they are at most `MOST_ENUMERATED`. Beyond that, dynamic programming over the kinds: for a given subset of
kinds, so given batches, and a given number of drives N, records, joules for work and idle watts of a step are sums over
kinds, and a step's seconds lie between bounds that hold for every split of N. So for each N only splits that no other
dominates in all three sums are kept; too many of them are thinned to those that none dominates within a factor of
1 + epsilon, and that factor is allowed for in the bound. Where the bound says that a better split may be among those of
some N, they are looked at one by one, as far as there is room; what is left is the gap. It is a bound, no estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from host.planner.bounds import seconds_bounds
from host.planner.cluster import Counts, Floats
from host.planner.cost import StepCosts
from host.planner.model import Model, Points
from host.planner.pareto import pareto_front

MOST_ENUMERATED = 200_000
# So many splits of one number of drives are kept unthinned; how coarse thinning begins, and how it goes on.
_MOST_KEPT, _EPSILON, _COARSER = 24, 1e-3, 2.0
# What is handed on of a search that did not look at all.
_MOST_HANDED_ON = 20_000


@dataclass(frozen=True)
class Space:
    """What may be chosen.

    Attributes:
        least: (kinds,) fewest devices.
        most: (kinds,) most.
        batches: (2 ** kinds, kinds) of each subset of kinds.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]
    batches: Counts

    @property
    def size(self) -> float:
        """How many configurations there are, the one without devices included."""
        return float(np.prod([high - low + 1.0 for low, high in zip(self.least, self.most, strict=True)]))

    def points(self, counts: Counts) -> Points:
        """Return configurations with their subset's batches."""
        numbers = (counts > 0) @ (1 << np.arange(counts.shape[1]))
        return Points(counts, self.batches[numbers])


@dataclass(frozen=True)
class Goal:
    """What is sought: least ``time log(seconds per record) + power log(watts)``, with limits of both and their product.

    Attributes:
        time, power: weights, see `ranking.score_weights`.
        seconds: most, of a record.
        watts: most.
        joules: most, of a record.
    """

    time: float
    power: float
    seconds: float = np.inf
    watts: float = np.inf
    joules: float = np.inf

    def score(self, costs: StepCosts) -> Floats:
        """Return the scores, infinite for those that do not keep to the limits."""
        return self.judge(costs.seconds / costs.records, costs.joules / costs.seconds)

    def judge(self, seconds: Floats, watts: Floats) -> Floats:
        """Return the scores of seconds of a record and watts."""
        kept = (seconds <= self.seconds) & (watts <= self.watts) & (seconds * watts <= self.joules)
        return np.where(kept, self.time * np.log(seconds) + self.power * np.log(watts), np.inf)

    def bound(self, records: Floats, joules: Floats, idle: Floats, low: Floats, high: Floats) -> Floats:
        """Return the least score that is possible.

        With T the step's seconds it is ``time log(T / R) + power log(J / T + W)``, convex in log T: least where
        J / (J + W T) = time / power, or at the end of the range that is nearer to it.

        Args:
            records: R of a step, at most.
            joules: J, for work, at least.
            idle: W, watts all the time, at least.
            low: the least seconds of a step.
            high: the most.
        """
        at = low
        if self.power > self.time:
            at = np.clip(joules * (self.power / max(self.time, 1e-12) - 1) / np.maximum(idle, 1e-12), low, high)
        fits = (low / records <= self.seconds) & (joules / high + idle <= self.watts)
        fits &= (joules + idle * low) / records <= self.joules
        values = self.time * np.log(at / records) + self.power * np.log(joules / at + idle)
        return np.where(fits, values, np.inf)


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        counts: (configurations, kinds) all of them, or the best ones.
        gap: how much less the least score may be than the least of these, 0 if all that could be better were seen.
    """

    counts: Counts
    gap: float


def enumerate_configurations(least: Sequence[int], most: Sequence[int]) -> Counts:
    """Return (configurations, kinds) all counts from `least` to `most`, without the one that has no device."""
    sizes = [high - low + 1 for low, high in zip(least, most, strict=True)]
    grid = np.indices(sizes).reshape(len(sizes), -1).T + np.array(least, np.int64)
    return np.asarray(grid[grid.sum(axis=1) > 0], np.int64)


def find_configurations(
    space: Space, model: Model, theta: Floats, goal: Goal, most_looked_at: int = MOST_ENUMERATED
) -> Found:
    """Return all configurations if there are few enough, else those that are best by the model, and the gap."""
    if space.size <= most_looked_at:
        return Found(enumerate_configurations(space.least, space.most), 0.0)
    return _Classes(space, model, theta, goal, most_looked_at).find()


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


class _Classes:
    """The search where there are too many configurations to look at."""

    def __init__(self, space: Space, model: Model, theta: Floats, goal: Goal, most: int) -> None:
        self._space, self._model, self._theta, self._goal, self._most = space, model, theta, goal, most
        self._drive = [bool(each) for each in model.figures.drive]
        self._seen: list[tuple[Counts, Floats]] = []
        self._best = np.inf

    def find(self) -> Found:
        """Look at splits that nothing dominates, then at all of the numbers of drives that may hide a better one."""
        corners = self._corners()
        self._look(corners)
        groups = sorted((group for subset in self._subsets() for group in subset), key=lambda group: group.bound)
        room = self._most
        open_bounds = []
        for group in groups:
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
        scores = self._goal.score(self._model.costs(self._theta, self._space.points(counts)))
        self._seen.append((counts, scores))
        self._best = min(self._best, float(scores.min(initial=np.inf)))

    def _corners(self) -> Counts:
        """Return the fewest and the most of each kind, in all combinations: where to begin."""
        pairs = [sorted({low, high}) for low, high in zip(self._space.least, self._space.most, strict=True)]
        every = np.stack(np.meshgrid(*pairs, indexing="ij"), axis=-1).reshape(-1, len(pairs))
        return np.asarray(every[every.sum(axis=1) > 0], np.int64)

    def _subsets(self) -> Iterator[list[_Group]]:
        space = self._space
        for number in range(1, len(space.batches)):
            inside = [number >> kind & 1 for kind in range(len(space.most))]
            bounds = zip(inside, space.least, space.most, strict=True)
            if any((own and not high) or (low and not own) for own, low, high in bounds):
                continue
            low = tuple(max(1, least) if own else 0 for own, least in zip(inside, space.least, strict=True))
            high = tuple(most if own else 0 for own, most in zip(inside, space.most, strict=True))
            if any(own and drive for own, drive in zip(inside, self._drive, strict=True)):
                yield self._groups(low, high)

    def _groups(self, low: tuple[int, ...], high: tuple[int, ...]) -> list[_Group]:
        """Return the numbers of drives of a subset that may hold something better than is known, with their bounds."""
        drives = [kind for kind, own in enumerate(self._drive) if own and high[kind]]
        first, last = sum(low[kind] for kind in drives), sum(high[kind] for kind in drives)
        points = self._space.points(_one_split_each(low, high, drives, first, last))
        costs = self._model.costs(self._theta, points)
        least, most = seconds_bounds(self._model, self._theta, points, low, high)
        work = costs.drive_joules.sum(axis=1)
        # What does not depend on the split: the host's own part, and idle watts but those of drives that come and go.
        fixed = costs.joules - work - costs.idle_watts * costs.seconds
        own_idle = self._idle(points.counts)
        always = costs.idle_watts - own_idle
        front = self._front(low, high, drives)
        rows = front.numbers - first
        own_records = (points.counts * points.batches * ~np.array(self._drive)).sum(axis=1)
        bounds = self._goal.bound(
            front.records + own_records[rows],
            front.joules + fixed[rows],
            front.idle + always[rows],
            least[rows],
            most[rows],
        )
        self._look(front.counts[np.argsort(bounds, kind="stable")[: 2 * _MOST_KEPT]])
        lowest = np.full(last - first + 1, np.inf)
        np.minimum.at(lowest, rows, bounds)
        return [
            _Group(low, high, first + number, float(bound)) for number, bound in enumerate(lowest) if bound < self._best
        ]

    def _idle(self, counts: Counts) -> Floats:
        """Return (rows,) idle watts of the drives that take part, if others draw nothing; else 0."""
        if self._model.unused_powered:
            return np.zeros(len(counts))
        factor = np.exp(self._model.layout.split(self._theta)[8])
        return np.asarray((counts * self._model.figures.idle_watts * self._drive).sum(axis=1) * factor)

    def _front(self, low: tuple[int, ...], high: tuple[int, ...], drives: Sequence[int]) -> _Front:
        host = tuple(0 if self._drive[kind] else high[kind] for kind in range(len(high)))
        front = _Front.of_nothing(host)
        kinds = np.array([low[kind] > 0 for kind in range(len(low))])
        for kind in drives:
            count = np.arange(low[kind], high[kind] + 1)
            counts = np.zeros((len(count), len(low)), np.int64)
            counts[:, kind] = count
            batches = np.broadcast_to(self._space.batches[int(kinds @ (1 << np.arange(len(low))))], counts.shape)
            costs = self._model.costs(self._theta, Points(counts, batches))
            front = front.joined(
                kind, count, batches[:, kind], costs.drive_joules[:, kind], self._idle(counts)
            ).thinned()
        return front


@dataclass(frozen=True)
class _Front:
    """Splits over the kinds so far, (splits, ..); sums are bounds: records at least, joules and watts at most true."""

    numbers: Counts
    counts: Counts
    records: Floats
    joules: Floats
    idle: Floats

    @classmethod
    def of_nothing(cls, host: Sequence[int]) -> _Front:
        """Return the one split without drives."""
        nothing = np.zeros(1)
        return cls(np.zeros(1, np.int64), np.array([host], np.int64), nothing, nothing, nothing)

    def joined(self, kind: int, count: Counts, batches: Counts, joules: Floats, idle: Floats) -> _Front:
        """Return all splits with so many of one more kind."""
        here, there = (each.ravel() for each in np.indices((len(self.numbers), len(count))))
        counts = self.counts[here]
        counts[:, kind] = count[there]
        return _Front(
            self.numbers[here] + count[there],
            counts,
            self.records[here] + (count * batches)[there],
            self.joules[here] + joules[there],
            self.idle[here] + idle[there],
        )

    def thinned(self) -> _Front:
        """Return those that none of the same number dominates; if those are too many, within a factor."""
        kept: list[tuple[Counts, float]] = []
        order = np.argsort(self.numbers, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(self.numbers[order])) + 1):
            kept.append(self._thin(rows))
        rows = np.concatenate([each for each, _ in kept])
        factor = np.concatenate([np.full(len(each), 1 + epsilon) for each, epsilon in kept])
        return _Front(
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
        while len(front) > _MOST_KEPT:
            # One of each cell: whatever falls into a cell is within the factor of whoever stands for it.
            sums = np.stack([self.records[exact], self.joules[exact], self.idle[exact]], axis=1)
            cells = np.floor(np.log(np.maximum(sums, 1e-300)) / np.log1p(epsilon))
            front = exact[np.unique(cells, axis=0, return_index=True)[1]]
            if len(front) > _MOST_KEPT:
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


def _one_split_each(low: Sequence[int], high: Sequence[int], drives: Sequence[int], first: int, last: int) -> Counts:
    """Return (numbers of drives, kinds) one split of each number from `first` to `last`."""
    counts = np.tile(
        np.array([high[kind] if kind not in drives else low[kind] for kind in range(len(low))]), (last - first + 1, 1)
    )
    left = np.arange(last - first + 1)
    for kind in drives:
        more = np.minimum(left, high[kind] - low[kind])
        counts[:, kind] += more
        left = left - more
    return np.asarray(counts, np.int64)

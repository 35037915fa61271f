"""Enumeration of all configurations up to symmetry, and the goal and result of a search. Pure.

Of equal devices only the number matters: that leaves the product of (n_k + 1) configurations, each of which is looked
at where they are at most `MOST_ENUMERATED`. Beyond that see `classes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from host.policies.selection.cluster import Counts, Floats
from host.policies.selection.costs.planned_records import TotalWork
from host.policies.selection.costs.step_costs import Points, StepCosts

MOST_ENUMERATED = 200_000


@dataclass(frozen=True)
class Space:
    """What may be chosen.

    Attributes:
        least: (kinds,) fewest devices.
        most: (kinds,) most.
        batches: (2 ** kinds, kinds) of each subset of kinds.
        work: records of the whole training; None for one, of any configuration.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]
    batches: Counts
    work: TotalWork | None = None

    @property
    def size(self) -> float:
        """How many configurations there are, the one without devices included."""
        return float(np.prod([high - low + 1.0 for low, high in zip(self.least, self.most, strict=True)]))

    def points(self, counts: Counts) -> Points:
        """Return configurations with their subset's batches."""
        return Points(counts, self.batches[(counts > 0) @ (1 << np.arange(counts.shape[1]))])

    def records(self, counts: Counts) -> Floats:
        """Return (configurations,) on how many records each trains in all."""
        return np.ones(len(counts)) if self.work is None else self.work.records(counts)


@dataclass(frozen=True)
class Goal:
    """What is sought: least ``time log(seconds per record) + power log(watts)``, with limits of both and their product.

    Attributes:
        time, power: weights, see `selection_rules.score_weights`.
        seconds: most, of the whole training.
        watts: most.
        joules: most, of the whole training.
    """

    time: float
    power: float
    seconds: float = np.inf
    watts: float = np.inf
    joules: float = np.inf

    def score(self, costs: StepCosts, work: Floats | float = 1.0) -> Floats:
        """Return the scores, infinite for those that do not keep to the limits; `work` is records of the training."""
        return self.judge(costs.seconds / costs.records, costs.joules / costs.seconds, work)

    def judge(self, seconds: Floats, watts: Floats, work: Floats | float) -> Floats:
        """Return the scores of seconds of a record and watts."""
        whole = seconds * work
        kept = (whole <= self.seconds) & (watts <= self.watts) & (whole * watts <= self.joules)
        return np.where(kept, self.time * np.log(seconds) + self.power * np.log(watts), np.inf)

    def bound(
        self, records: Floats, joules: Floats, idle: Floats, low: Floats, high: Floats, work: Floats | float = 1.0
    ) -> Floats:
        """Return the least score that is possible.

        With T the step's seconds it is ``time log(T / R) + power log(J / T + W)``, convex in log T: least where
        J / (J + W T) = time / power, or at the end of the range that is nearer to it.

        Args:
            records: R of a step, at most.
            joules: J, for work, at least.
            idle: W, watts all the time, at least.
            low: the least seconds of a step.
            high: the most.
            work: records of the whole training, at least.
        """
        at = low
        if self.power > self.time:
            at = np.clip(joules * (self.power / max(self.time, 1e-12) - 1) / np.maximum(idle, 1e-12), low, high)
        fits = (low / records * work <= self.seconds) & (joules / high + idle <= self.watts)
        fits &= (joules + idle * low) / records * work <= self.joules
        return np.where(fits, self.time * np.log(at / records) + self.power * np.log(joules / at + idle), np.inf)


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

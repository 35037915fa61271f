"""Configurations from best to worst, what they cost and how sure that is. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from firmware_agent.common.errors import ConfigurationError
from host.policies.selection.beliefs.belief import Belief
from host.policies.selection.cluster import Cluster, Configuration, Counts, Estimate, Floats, Range
from host.policies.selection.costs.step_costs import Flags, Points
from host.policies.selection.search.configuration_search import Goal
from host.policies.selection.selection_rules import SelectionRules, score_weights

# The best so many are compared by samples; another one within this share of the best is as good.
_SAMPLED, _SAMPLES, _SEED, TIE = 100, 1000, 7, 0.01
# What misses a limit by this much, as a logarithm, may keep to it after all; so many of those are looked at.
_NEAR, _MOST_NEAR = 0.25, 40
# Where nothing is expected to keep to the limits, so many that miss them by least.
_MOST_LIKELY = 1000
# Time, power, energy, edp as sums of the logarithms of time and power: E = P T, EDP = E T (Gu et al.).
_QUANTITIES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])


class Limit(NamedTuple):
    """A limit of the constraints, and what each configuration has of what it limits.

    Attributes:
        name, unit: for people.
        most: that is allowed.
        values: (configurations,).
        quantity: row of `_QUANTITIES` that it is.
    """

    name: str
    unit: str
    most: float
    values: Floats
    quantity: int


@dataclass(frozen=True)
class Ranking:
    """What every configuration is expected to cost, (configurations,) float64 each.

    Attributes:
        cluster, rules, belief, points: what it is about.
        step_seconds: of a step.
        records: of a step.
        work: records of the whole training.
        seconds: of the whole training.
        watts: in the mean.
        score: less is better; of a record, for not every configuration has all of them within reach, or of what such
            a record is worth where a critical batch is known.
        feasible: which ones keep to the constraints.
        order: rows of the feasible ones, best first; of all if none is.
        gap: how much less a score may be that the search did not see.
    """

    cluster: Cluster
    rules: SelectionRules
    belief: Belief
    points: Points
    step_seconds: Floats
    records: Floats
    work: Floats
    seconds: Floats
    watts: Floats
    score: Floats
    feasible: Flags
    order: Counts
    gap: float

    @classmethod
    def of(
        cls, cluster: Cluster, rules: SelectionRules, belief: Belief, points: Points, work: Floats, gap: float = 0.0
    ) -> Ranking:
        """Return the ranking of configurations; `work` is (configurations,) records that each trains on in all.

        With a critical batch C, what is compared is what learning costs: with steps of B records a loss is reached
        after a number of records that grows as 1 + B / C (McCandlish et al. 2018, arXiv:1812.06162: steps S and
        records E to a loss obey (S / S_min - 1)(E / E_min - 1) = 1, and C is E_min / S_min).
        """
        logs, of_step = belief.means(points)
        step, watts = np.exp(logs[:, 0]), np.exp(logs[:, 1])
        of_record = step / of_step
        seconds = of_record * work
        time, power = score_weights(rules)
        needed = 0.0 if rules.critical_batch is None else np.log1p(of_step / rules.critical_batch)
        score = time * (np.log(of_record) + needed) + power * np.log(watts)
        feasible = np.ones(len(points), bool)
        for limit in _limits(rules, seconds, watts):
            feasible &= limit.values <= limit.most
        # Of equal ones the one with the fewest devices.
        order = np.lexsort((points.counts.sum(axis=1), score))
        order = order[feasible[order]] if feasible.any() else order
        return cls(cluster, rules, belief, points, step, of_step, work, seconds, watts, score, feasible, order, gap)

    def at(self, cluster: Cluster) -> Ranking:
        """Return the ranking of the same configurations by the figures of `cluster`, an end of the profiles' bands.

        What was seen of them differs from the model by as much there.
        """
        belief = copy(self.belief)
        belief.model = self.belief.model.at(cluster)
        return Ranking.of(cluster, self.rules, belief, self.points, self.work, self.gap)

    def keep(self, configuration: Configuration, margin: float) -> Ranking:
        """Return the same with a configuration as the best one if no other is better by more than a share."""
        row = self.find(configuration)
        most = float(self.score[self.best]) + margin * sum(score_weights(self.rules))
        if row is None or not self.feasible[row] or self.score[row] > most:
            return self
        return replace(self, order=np.concatenate([[row], self.order[self.order != row]]))

    @property
    def best(self) -> int:
        """Row of the best one."""
        return int(self.order[0])

    @property
    def record_seconds(self) -> Floats:
        """(configurations,) seconds of a record, by which configurations are compared."""
        return self.seconds / self.work

    def configuration(self, row: int) -> tuple[Configuration, tuple[int, ...]]:
        """Return counts and batches."""
        return tuple(self.points.counts[row].tolist()), tuple(self.points.batches[row].tolist())

    def find(self, configuration: Configuration) -> int | None:
        """Return the row of a configuration; None if it is not among these."""
        rows = np.flatnonzero((self.points.counts == np.array(configuration)).all(axis=1))
        return int(rows[0]) if len(rows) else None

    def sure(self) -> float:
        """Return the probability that no other configuration is better than the best by more than a tie."""
        rows = self.order[:_SAMPLED]
        shared, own = self._score_errors(rows)
        normal = np.random.default_rng(_SEED).standard_normal((_SAMPLES, shared.shape[1] + len(rows)))
        drawn = self.score[rows] + normal[:, : shared.shape[1]] @ shared.T + normal[:, shared.shape[1] :] * own
        best = float(np.mean(drawn[:, 0] <= drawn.min(axis=1) + self._tie))
        return best * (1 - float(self.chances(self.near_misses()).max(initial=0.0)))

    def gains(self, rows: Counts) -> Floats:
        """Return (rows,) by how much configurations are expected to be better than the best where they are better.

        The expected improvement of Jones, Schonlau and Welch (1998), of the difference of two normal scores, times the
        probability that a configuration keeps to the constraints (Schonlau, Welch and Jones 1998).
        """
        shared, own = self._score_errors(np.append(rows, self.best))
        errors = np.sqrt(np.square(shared[:-1] - shared[-1]).sum(axis=1) + own[:-1] ** 2 + own[-1] ** 2)
        gain = self.score[self.best] - self.score[rows]
        at = gain / np.maximum(errors, 1e-12)
        better = gain * ndtr(at) + errors * np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi)
        return np.asarray(better * self.chances(rows))

    def _score_errors(self, rows: Counts) -> tuple[Floats, Floats]:
        """Return how far scores may be off: (rows, numbers) that all share, and (rows,) each one's own."""
        shared, own = self.belief.errors(self.points.take(rows))
        weights = np.array(score_weights(self.rules))
        return np.einsum("o,ron->rn", weights, shared), np.sqrt(np.square(own) @ np.square(weights))

    def _deviations(self, rows: Counts, quantities: Floats) -> Floats:
        """Return (quantities, rows) standard deviations of logarithms; `quantities` are some of `_QUANTITIES`."""
        shared, own = self.belief.errors(self.points.take(rows))
        of_numbers = np.square(np.einsum("qo,ron->qrn", quantities, shared)).sum(axis=2)
        return np.asarray(np.sqrt(of_numbers + np.square(quantities) @ np.square(own).T))

    def estimates(self, rows: Counts, steps: Counts) -> tuple[Estimate, ...]:
        """Return what configurations cost, within ranges.

        Args:
            rows: which.
            steps: (rows,) how many of each were measured.
        """
        seconds, watts = self.seconds[rows], self.watts[rows]
        wide = float(ndtri(0.5 + self.rules.confidence / 2)) * self._deviations(rows, _QUANTITIES)
        values = np.stack([seconds, watts, seconds * watts, seconds * seconds * watts])
        ranges = np.stack([values, values * np.exp(-wide), values * np.exp(wide)], axis=-1)
        each = zip(rows.tolist(), ranges.transpose(1, 0, 2).tolist(), steps.tolist(), strict=True)
        return tuple(self._estimate(row, own, seen) for row, own, seen in each)

    def _estimate(self, row: int, ranges: list[list[float]], steps: int) -> Estimate:
        time, power, energy, edp = (Range(*each) for each in ranges)
        step, work = float(self.step_seconds[row]), float(self.work[row])
        return Estimate(*self.configuration(row), step, work, time, power, energy, edp, steps)

    def chances(self, rows: Counts) -> Floats:
        """Return (rows,) the probability that a configuration keeps to the constraints: of each, the least."""
        if not (limits := self.limits):
            return np.ones(len(rows))
        errors = self._deviations(rows, _QUANTITIES[[limit.quantity for limit in limits]])
        room = np.log([limit.most / limit.values[rows] for limit in limits])
        return np.asarray(ndtr(room / np.maximum(errors, 1e-6)).min(axis=0))

    def near_misses(self) -> Counts:
        """Return rows that would be better but are not expected to keep to the constraints."""
        if not self.limits or not self.feasible.any():
            return np.empty(0, np.int64)
        over = _overshoot(self.limits)
        rows = np.flatnonzero((self.score < self.score[self.best] - self._tie) & ~self.feasible & (over < _NEAR))
        return np.asarray(rows[np.argsort(over[rows], kind="stable")][:_MOST_NEAR])

    def likeliest(self) -> tuple[Counts, Floats]:
        """Return rows that miss the constraints by least, and their chances to keep to them, the likeliest first."""
        rows = np.argsort(_overshoot(self.limits), kind="stable")[:_MOST_LIKELY]
        chances = self.chances(rows)
        order = np.argsort(-chances, kind="stable")
        return rows[order], chances[order]

    @property
    def limits(self) -> list[Limit]:
        """What configurations must keep to."""
        return _limits(self.rules, self.seconds, self.watts)

    @property
    def _tie(self) -> float:
        return TIE * min(1.0, sum(score_weights(self.rules)))

    def refuse_infeasible(self, steps: Callable[[Counts], Counts]) -> None:
        """Return if some configuration keeps to the constraints.

        Args:
            steps: says how many steps of some rows were measured.

        Raises:
            ConfigurationError: none does: which constraints bind, and by how much the best one for each misses it.
        """
        if self.feasible.any():
            return
        alone = [
            f"{self._miss(limit, row, steps)}, with {self._name(row)}, the best there is for it"
            for limit in self.limits
            if limit.values[row := int(limit.values.argmin())] > limit.most
        ]
        if alone:
            raise ConfigurationError(f"{'; '.join(alone)}; allow more, or add devices")
        # Each can be kept to, but not all at once.
        raise ConfigurationError(
            f"{'; '.join(self._clash(each, steps) for each in _conflicts(self.limits))}; allow more"
        )

    def _clash(self, limits: list[Limit], steps: Callable[[Counts], Counts]) -> str:
        """Return which configuration comes nearest to limits that cannot be kept to at once, and by what it misses."""
        row = int(_overshoot(limits).argmin())
        missed = max(limits, key=lambda limit: float(limit.values[row]) / limit.most)
        return (
            f"no configuration keeps to {' and '.join(limit.name for limit in limits)} at once; the nearest is "
            f"{self._name(row)}: {self._miss(missed, row, steps)}"
        )

    def _miss(self, limit: Limit, row: int, steps: Callable[[Counts], Counts]) -> str:
        """Return by how much a configuration misses a limit, and how that is known."""
        at = np.array([row])
        estimate = self.estimates(at, steps(at))[0]
        value = (estimate.seconds, estimate.watts, estimate.joules)[limit.quantity]
        number, unit = estimate.steps_measured, limit.unit
        known = (
            f"measured in {number} step{'s' * (number > 1)}"
            if number
            else f"not measured: {value.low:.4g} to {value.high:.4g} {unit} with a probability of "
            f"{self.rules.confidence:.0%}"
        )
        much = f"{value.value / limit.most - 1:.1%} too much"
        return f"{limit.name}: {value.value:.4g} {unit} ({known}) where {limit.most:.4g} {unit} are allowed, {much}"

    def _name(self, row: int) -> str:
        return self.cluster.name(self.points.counts[row].tolist())


def goal_of(rules: SelectionRules) -> Goal:
    """Return what the search seeks."""
    wanted = rules.constraints
    limits = (wanted.deadline_seconds, wanted.watts, wanted.joules)
    return Goal(*score_weights(rules), *(math.inf if limit is None else limit for limit in limits))


def _limits(rules: SelectionRules, seconds: Floats, watts: Floats) -> list[Limit]:
    wanted = rules.constraints
    every = (
        ("deadline", "s", wanted.deadline_seconds, seconds),
        ("watts", "W", wanted.watts, watts),
        ("joules", "J", wanted.joules, seconds * watts),
    )
    return [
        Limit(name, unit, most, values, quantity)
        for quantity, (name, unit, most, values) in enumerate(every)
        if most is not None
    ]


def _conflicts(limits: list[Limit]) -> list[list[Limit]]:
    """Return the pairs of limits that no configuration keeps to at once; all of them where each pair can be kept to."""
    pairs = [list(pair) for pair in combinations(limits, 2)]
    return [pair for pair in pairs if _overshoot(pair).min() > 0] or [limits]


def _overshoot(limits: list[Limit]) -> Floats:
    """Return by how much each configuration exceeds the limit that it exceeds most, as a logarithm."""
    return np.asarray(np.max([np.log(limit.values / limit.most) for limit in limits], axis=0))

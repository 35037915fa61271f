"""Configurations from best to worst, what they cost and how sure that is. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import ndtr, ndtri

from firmware_agent.common.errors import ConfigurationError
from host.policies.selection.beliefs.belief import Belief, Slopes
from host.policies.selection.cluster import Cluster, Configuration, Counts, Estimate, Floats, Range
from host.policies.selection.costs.step_costs import Flags, Points
from host.policies.selection.search.configuration_search import Goal
from host.policies.selection.selection_rules import SelectionRules

# The best so many are compared by samples; another one within this share of the best is as good.
_SAMPLED, _SAMPLES, _SEED, TIE = 100, 1000, 7, 0.01
# What misses a limit by this much, as a logarithm, may keep to it after all; so many of those are looked at.
_NEAR, _MOST_NEAR = 0.25, 40
# Where nothing is expected to keep to the limits, so many that miss them by least.
_MOST_LIKELY = 1000
# What is limited, how much of it is allowed, and how much each configuration has, (configurations,).
Limit = tuple[str, float, Floats]
_UNITS = {"deadline": "s", "watts": "W", "joules": "J"}


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
        score: less is better; of a record, for not every configuration has all of them within reach.
        feasible: which ones keep to the constraints.
        order: rows of the feasible ones, best first; of all if none is.
        gap: how much less a score may be that the search did not see.
        slopes: by which uncertainties are worked out.
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
    slopes: Slopes

    @classmethod
    def of(
        cls, cluster: Cluster, rules: SelectionRules, belief: Belief, points: Points, work: Floats, gap: float = 0.0
    ) -> Ranking:
        """Return the ranking of configurations; `work` is (configurations,) records that each trains on in all."""
        logs, of_step = belief.means(points)
        step, watts = np.exp(logs[:, 0]), np.exp(logs[:, 1])
        of_record = step / of_step
        seconds = of_record * work
        time, power = score_weights(rules)
        score = time * np.log(of_record) + power * np.log(watts)
        feasible = np.ones(len(points), bool)
        for _, limit, values in _limits(rules, seconds, watts):
            feasible &= values <= limit
        # Of equal ones the one with the fewest devices.
        order = np.lexsort((points.counts.sum(axis=1), score))
        order = order[feasible[order]] if feasible.any() else order
        costs = step, of_step, work, seconds, watts, score
        return cls(cluster, rules, belief, points, *costs, feasible, order, gap, Slopes(belief, points))

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

    def covariance(self, rows: Counts) -> Floats:
        """Return (rows, rows) covariance of the scores of some configurations."""
        joint, count = self.belief.joint(self.points.take(rows), self.slopes.at(rows)), len(rows)
        time, power = score_weights(self.rules)
        both = time * joint[:count] + power * joint[count:]
        return np.asarray(time * both[:, :count] + power * both[:, count:])

    def sure(self) -> float:
        """Return the probability that no other configuration is better than the best by more than a tie."""
        rows = self.order[:_SAMPLED]
        values, vectors = np.linalg.eigh(self.covariance(rows))
        normal = np.random.default_rng(_SEED).standard_normal((_SAMPLES, len(rows)))
        drawn = self.score[rows] + normal @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        best = float(np.mean(drawn[:, 0] <= drawn.min(axis=1) + self._tie))
        return best * (1 - float(self.near_misses()[1].max(initial=0.0)))

    def estimates(self, rows: Counts, steps: Counts) -> tuple[Estimate, ...]:
        """Return what configurations cost, within ranges.

        Args:
            rows: which.
            steps: (rows,) how many of each were measured.
        """
        variances, seconds, watts = self._variances(rows), self.seconds[rows], self.watts[rows]
        wide = float(ndtri(0.5 + self.rules.confidence / 2)) * np.sqrt(
            np.maximum([np.einsum("i,rij,j->r", at, variances, at) for at in _QUANTITIES], 0.0)
        )
        values = np.stack([seconds, watts, seconds * watts, seconds * seconds * watts])
        ranges = np.stack([values, values * np.exp(-wide), values * np.exp(wide)], axis=-1)
        each = zip(rows.tolist(), ranges.transpose(1, 0, 2).tolist(), steps.tolist(), strict=True)
        return tuple(self._estimate(row, own, seen) for row, own, seen in each)

    def _estimate(self, row: int, ranges: list[list[float]], steps: int) -> Estimate:
        time, power, energy, edp = (Range(*each) for each in ranges)
        step, work = float(self.step_seconds[row]), float(self.work[row])
        return Estimate(*self.configuration(row), step, work, time, power, energy, edp, steps)

    def _variances(self, rows: Counts) -> Floats:
        return self.belief.variances(self.points.take(rows), self.slopes.at(rows))

    def chances(self, rows: Counts) -> Floats:
        """Return (rows,) the probability that a configuration keeps to the constraints: of each, the least."""
        variances = self._variances(rows)
        least = np.ones(len(rows))
        for name, limit, values in _limits(self.rules, self.seconds, self.watts):
            at = _QUANTITIES[("deadline", "watts", "joules").index(name)]
            errors = np.sqrt(np.maximum(np.einsum("i,rij,j->r", at, variances, at), 1e-12))
            least = np.minimum(least, ndtr(np.log(limit / values[rows]) / errors))
        return np.asarray(least)

    def near_misses(self) -> tuple[Counts, Floats]:
        """Return rows that would be better but are not expected to keep to the constraints, and their chances."""
        limits = _limits(self.rules, self.seconds, self.watts)
        if not limits or not self.feasible.any():
            return np.empty(0, np.int64), np.empty(0)
        over = _overshoot(limits)
        rows = np.flatnonzero((self.score < self.score[self.best] - self._tie) & ~self.feasible & (over < _NEAR))
        rows = rows[np.argsort(over[rows], kind="stable")][:_MOST_NEAR]
        return rows, self.chances(rows) if len(rows) else np.empty(0)

    def likeliest(self) -> tuple[Counts, Floats]:
        """Return rows that miss the constraints by least, and their chances to keep to them, the likeliest first."""
        limits = _limits(self.rules, self.seconds, self.watts)
        rows = np.argsort(_overshoot(limits), kind="stable")[:_MOST_LIKELY]
        chances = self.chances(rows)
        order = np.argsort(-chances, kind="stable")
        return rows[order], chances[order]

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
        limits = _limits(self.rules, self.seconds, self.watts)
        alone = [
            f"{self._miss(name, limit, row, steps)}, with {self._name(row)}, the best there is for it"
            for name, limit, values in limits
            if values[row := int(values.argmin())] > limit
        ]
        if alone:
            raise ConfigurationError(f"{'; '.join(alone)}; allow more, or add devices")
        # Each can be kept to, but not all at once.
        raise ConfigurationError(f"{'; '.join(self._clash(each, steps) for each in _conflicts(limits))}; allow more")

    def _clash(self, limits: list[Limit], steps: Callable[[Counts], Counts]) -> str:
        """Return which configuration comes nearest to limits that cannot be kept to at once, and by what it misses."""
        row = int(_overshoot(limits).argmin())
        name, limit, _ = max(limits, key=lambda each: float(each[2][row]) / each[1])
        return (
            f"no configuration keeps to {' and '.join(each[0] for each in limits)} at once; the nearest is "
            f"{self._name(row)}: {self._miss(name, limit, row, steps)}"
        )

    def _miss(self, name: str, limit: float, row: int, steps: Callable[[Counts], Counts]) -> str:
        """Return by how much a configuration misses a limit, and how that is known."""
        at = np.array([row])
        estimate = self.estimates(at, steps(at))[0]
        value = {"deadline": estimate.seconds, "watts": estimate.watts, "joules": estimate.joules}[name]
        unit, number = _UNITS[name], estimate.steps_measured
        known = (
            f"measured in {number} step{'s' * (number > 1)}"
            if number
            else f"not measured: {value.low:.4g} to {value.high:.4g} {unit} with a probability of "
            f"{self.rules.confidence:.0%}"
        )
        much = f"{value.value / limit - 1:.1%} too much"
        return f"{name}: {value.value:.4g} {unit} ({known}) where {limit:.4g} {unit} are allowed, {much}"

    def _name(self, row: int) -> str:
        return self.cluster.name(self.points.counts[row].tolist())


# Time, power, energy, edp as sums of the logarithms of time and power: E = P T, EDP = E T (Gu et al.).
_QUANTITIES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])


def score_weights(rules: SelectionRules) -> tuple[float, float]:
    """Return what the score is made of: weights of the logarithms of time and of power; E = P T (Gu et al.)."""
    preference = rules.preference
    return preference.time + preference.energy, preference.power + preference.energy


def goal_of(rules: SelectionRules) -> Goal:
    """Return what the search seeks."""
    wanted = rules.constraints
    limits = (wanted.deadline_seconds, wanted.watts, wanted.joules)
    return Goal(*score_weights(rules), *(math.inf if limit is None else limit for limit in limits))


def _limits(rules: SelectionRules, seconds: Floats, watts: Floats) -> list[Limit]:
    wanted = rules.constraints
    every = (
        ("deadline", wanted.deadline_seconds, seconds),
        ("watts", wanted.watts, watts),
        ("joules", wanted.joules, seconds * watts),
    )
    return [(name, limit, values) for name, limit, values in every if limit is not None]


def _conflicts(limits: list[Limit]) -> list[list[Limit]]:
    """Return the pairs of limits that no configuration keeps to at once; all of them where each pair can be kept to."""
    pairs = [list(pair) for pair in combinations(limits, 2)]
    return [pair for pair in pairs if _overshoot(pair).min() > 0] or [limits]


def _overshoot(limits: list[Limit]) -> Floats:
    """Return by how much each configuration exceeds the limit that it exceeds most, as a logarithm."""
    return np.asarray(np.max([np.log(values / limit) for _, limit, values in limits], axis=0))

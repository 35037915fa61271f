"""The planner: which configuration to try next, and which is best. Pure and sequential.

After Gu et al. (ICPADS 2019): a few pre-training steps give the seconds t of a step and its watts P, and with S steps
left T = S t, E = P T, EDP = E T. They run every configuration; here a fitted model (`belief.Belief`) says what
the others cost and how sure that is; only what could change the decision is run. Every step counts as training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from firmware_agent.common.errors import ConfigurationError
from host.policies.selection.beliefs.belief import Belief
from host.policies.selection.beliefs.observations import Observations
from host.policies.selection.blas_threads import on_one_thread
from host.policies.selection.cluster import (
    Cluster,
    Configuration,
    Counts,
    Estimate,
    Floats,
    Trial,
    TrialResult,
    TrialStep,
)
from host.policies.selection.costs.cost_model import Model
from host.policies.selection.costs.speed_curves import PaceTables, table_of
from host.policies.selection.costs.step_costs import Figures, Points
from host.policies.selection.members import Members
from host.policies.selection.reasons import explain, pareto_rows
from host.policies.selection.search.branch_and_bound import find_configurations
from host.policies.selection.search.configuration_search import Space
from host.policies.selection.search.planned_batches import (
    check_batch,
    keep_batches,
    knees,
    subset_batches,
    subset_numbers,
    sync_seconds,
)
from host.policies.selection.search.ranking import Ranking, goal_of
from host.policies.selection.search.trial_choice import contenders, find_worthiest
from host.policies.selection.selection_rules import SelectionPlan, SelectionRules

__all__ = ["Planner", "SelectionPlan"]
_MOST_TRIALS, _MOST_RANKED, _MOST_OF_SHARE = 16, 200, 0.2
# Of several servers: batches are worked out for each subset of kinds.
_MOST_KINDS = 12
# Where nothing is expected to keep to the constraints, a chance to that is worth a trial.
_DOUBTFUL = 0.05


class Planner:
    """Chooses trials one after the other, learns from each, and decides."""

    def __init__(
        self,
        cluster: Cluster,
        rules: SelectionRules,
        records: float,
        private: Mapping[str, float] | None = None,
        ends: Mapping[str, Cluster] | None = None,
    ) -> None:
        """Take what there is, and what is wanted.

        Args:
            cluster: all that might train.
            rules: what is best, what must hold, what may be spent.
            records: that the job trains on in all, whatever the batches, if every node takes part.
            private: node -> how many of them nobody trains on without it; None for none of any.
            ends: the cluster at each end of the bands of the profiles' figures, if bands are asked for.

        Raises:
            ConfigurationError: there is no device, a batch does not fit, a node is unknown, or there is no record.
        """
        self.cluster, self.rules, self._ends = cluster, rules, ends or {}
        if not 0 < records < math.inf:
            raise ConfigurationError(f"planner: {records!r} records to train on; give the job data and steps")
        self._members = Members(cluster, rules.constraints, records, private or {})
        self._figures = Figures.of(cluster)
        self._tables = [table_of(kind) for kind in cluster.kinds]
        check_batch(self._tables, rules.batch_size)
        self._reference = knees(self._tables, rules)
        self._observations = Observations(cluster, self._tables)
        self._trials: list[TrialResult] = []
        self._attempts = 0
        self._ranking: Ranking | None = None
        self._batches: Counts | None = None
        self._refuse_too_many()

    def next_trial(self) -> Trial | None:
        """Return what to run next, or None: enough is known, or what may be spent is spent."""
        if not self.rules.steps or self._attempts >= _MOST_TRIALS:
            return None
        with on_one_thread():
            return self._next_trial(self._look())

    def _next_trial(self, ranking: Ranking) -> Trial | None:
        if not self._observations:
            every = int(ranking.points.counts.sum(axis=1).argmax())
            if (first := self._trial(ranking, every, "all devices, to see each of them")) is not None:
                return first
        if not ranking.feasible.any():
            return self._hopeful(ranking)
        best = self._trial(ranking, ranking.best, "it is the best by all that is known")
        if best is not None and not self._steps(ranking, np.array([ranking.best]))[0]:
            return best
        rows = contenders(ranking)
        costs = self._costs(ranking, rows)
        steps = self._affordable(costs, self._left(ranking))
        closed = (steps < 1) | (self._steps(ranking, rows) >= self.rules.steps)
        preference = self.rules.preference
        weight = preference.time + preference.power + preference.energy
        kept = find_worthiest(ranking.gains(rows), np.where(closed, np.inf, costs * steps), weight)
        if kept is None:
            return None
        hopeful = "it would be better, and may keep to the constraints after all"
        return self._trial(ranking, int(rows[kept]), "it may be the best" if ranking.feasible[rows[kept]] else hopeful)

    def _hopeful(self, ranking: Ranking) -> Trial | None:
        """Return a trial of what likeliest keeps to the constraints where nothing is expected to; None if none may."""
        rows, chances = ranking.likeliest()
        rows = rows[chances > _DOUBTFUL]
        why = "nothing is expected to keep to the constraints; it may after all"
        open_rows = rows[self._steps(ranking, rows) < self.rules.steps]
        trials = (self._trial(ranking, int(row), why) for row in open_rows)
        return next((trial for trial in trials if trial is not None), None)

    def observe(self, trial: Trial, seen: Sequence[TrialStep]) -> None:
        """Learn from the steps of a trial; fewer than asked for where a device failed.

        Raises:
            ConfigurationError: what was seen is not positive, or of a node that there is not.
        """
        self._observations.add(trial, seen)
        self._attempts += 1
        if seen:
            self._trials.append(TrialResult(trial, tuple(seen)))
        self._ranking = None

    def lose(self, node: str) -> None:
        """Note that a node failed: it takes part in nothing any more.

        Raises:
            ConfigurationError: there is no such node, or none is left.
        """
        self._ranking = None
        self._members.lose(node)

    def choose_nodes(self, configuration: Configuration) -> tuple[str, ...]:
        """Return which nodes take part: of each kind the first that are left, included ones first."""
        return self._members.choose(configuration)

    def decide(self) -> SelectionPlan:
        """Return what is best by all that is known.

        Raises:
            ConfigurationError: no configuration keeps to the constraints: which one binds, and by how much.
        """
        with on_one_thread():
            return self._decide(self._look())

    def _decide(self, ranking: Ranking) -> SelectionPlan:
        ranking.refuse_infeasible(lambda rows: self._steps(ranking, rows))
        rows = ranking.order[:_MOST_RANKED]
        front = pareto_rows(ranking)
        both = np.concatenate([rows, front[~np.isin(front, rows)]])
        ends = {end: ranking.at(cluster) for end, cluster in self._ends.items()}
        steps = self._steps(ranking, both)
        each = (there.estimates(both, steps) for there in (ranking, *ends.values()))
        estimates = dict(zip(both.tolist(), map(Estimate.with_ends, *each), strict=True))
        chosen, *_ = ranked = tuple(estimates[row] for row in rows.tolist())
        sure, trials = ranking.sure(), tuple(self._trials)
        reasons = explain(ranking, [*ends.values()], chosen.steps_measured, sure, trials, sorted(self._members.lost))
        fronts = tuple(estimates[row] for row in front.tolist())
        feasible = int(ranking.feasible.sum())
        return SelectionPlan(
            *(chosen, ranked, fronts, reasons, sure, float(np.expm1(ranking.gap)), trials, feasible),
            at_ends={
                end: self.cluster.name(there.configuration(there.best)[0])
                if there.feasible.any()
                else "nothing keeps to the limits"
                for end, there in ends.items()
            },
        )

    def _refuse_too_many(self) -> None:
        """Batches are worked out for each subset of kinds, and several servers soon have many."""
        servers, kinds = len(self.cluster.sides), len(self.cluster.kinds)
        if servers and kinds > _MOST_KINDS:
            raise ConfigurationError(
                f"planner: {kinds} kinds of drives on {servers} servers are more than it looks at, {_MOST_KINDS}; plan "
                "with fewer servers, or with drives of fewer profiles"
            )

    def _look(self) -> Ranking:
        if self._ranking is None:
            self._ranking = self._believe()
        return self._ranking

    def _believe(self) -> Ranking:
        deviations = self._observations.deviations(self._members.with_lost())
        curves = self._observations.curves(self._reference)
        paces, powered = PaceTables.of(deviations), self.rules.constraints.unused_powered
        model = Model(self._figures, curves, paces, self._overhead_unit(), powered)
        belief = Belief(model, self._observations.data())
        devices = tuple(len(each) for each in self._members.nodes())
        goal = goal_of(self.rules)
        fresh = subset_batches(model.tables, devices, self.rules, sync_seconds(belief, devices))
        table = self._batches = keep_batches(belief, self._batches, fresh, devices)
        work = self._members.work()
        space = Space(self._members.fewest(), devices, table, work)
        found = find_configurations(space, model, belief.mode, goal)
        subsets = subset_numbers(found.counts)
        points = Points(found.counts, table[subsets], subsets)
        return Ranking.of(self.cluster, self.rules, belief, points, work.records(found.counts), found.gap)

    def _overhead_unit(self) -> float:
        """Return the seconds of a table's step at the knee: what overhead and such are measured in."""
        pairs = zip(self._tables, self._reference, strict=True)
        return max(table.seconds(min(int(batch), table.largest_batch)) for table, batch in pairs)

    def _steps(self, ranking: Ranking, rows: Counts) -> Counts:
        """Return how many steps of these were measured."""
        return np.array([self._observations.steps_of(*ranking.configuration(int(row))) for row in rows], np.int64)

    def _trial(self, ranking: Ranking, number: int, why: str) -> Trial | None:
        """Return a trial, of fewer steps if what is left allows no more; None if it allows none."""
        steps = int(self._affordable(self._costs(ranking, np.array([number])), self._left(ranking))[0])
        configuration, batches = ranking.configuration(number)
        return Trial(configuration, batches, steps, why) if steps else None

    def _affordable(self, costs: Floats, left: float) -> Counts:
        """Return how many steps a trial has, of what one step costs; 0 where `left` buys none."""
        if left < 0:
            return np.zeros(len(costs), np.int64)
        # Where windows of steps are dear, fewer say enough.
        window = self.rules.window
        each = np.maximum(costs, 1e-12) * window
        dear = np.maximum(1.0, _MOST_OF_SHARE * self.rules.most_share / each)
        steps = np.minimum(self.rules.steps // window, dear).astype(np.int64) * window
        return np.asarray(np.where(costs * steps <= left, steps, (left / each).astype(np.int64) * window))

    def _costs(self, ranking: Ranking, rows: Counts) -> Floats:
        """Return what one step costs beyond what the best would have cost, as shares of the whole training."""
        best = ranking.best
        fastest = ranking.seconds[best] / ranking.work[best]
        extra = ranking.step_seconds[rows] - ranking.records[rows] * fastest
        return np.asarray(np.maximum(extra, 0.0) / ranking.seconds[best])

    def _left(self, ranking: Ranking) -> float:
        """Return the share of the whole training that trials may still cost."""
        whole, work = ranking.seconds[ranking.best], ranking.work[ranking.best]
        spent = 0.0
        for tried in self._trials:
            step_seconds = float(np.mean([each.step_seconds for each in tried.seen]))
            spent += (step_seconds - tried.trial.records * whole / work) * len(tried.seen)
        return float(self.rules.most_share - max(0.0, spent) / whole)

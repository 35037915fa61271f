"""The planner: which configuration to try next, and which is best. Pure and sequential.

After Gu et al. (ICPADS 2019): a few pre-training steps give the seconds t of a step and its watts P, and with S steps
left T = S t, E = P T, EDP = E T. They run every configuration; here a fitted model (`belief.Belief`) says what
the others cost and how sure that is; only what could change the decision is run. Every step counts as training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

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
from host.policies.selection.level_changes import EXCHANGE
from host.policies.selection.members import Members
from host.policies.selection.reasons import explain, pareto_rows
from host.policies.selection.search.branch_and_bound import find_configurations
from host.policies.selection.search.configuration_search import Space
from host.policies.selection.search.planned_batches import (
    balanced_batches,
    best_batches,
    check_batch,
    knees,
    subset_numbers,
    sync_seconds,
)
from host.policies.selection.search.ranking import Ranking, goal_of
from host.policies.selection.search.trial_choice import contenders, find_worthiest
from host.policies.selection.selection_rules import PlannedAgain, SelectionPlan, SelectionRules

__all__ = ["Planner", "SelectionPlan"]
_MOST_TRIALS, _MOST_RANKED, _MOST_OF_SHARE = 32, 200, 0.2
# So many times the steps of a trial, or this share of the job's steps in between, are taken of what may be the best,
# where nothing else is worth it and that pays.
_REPEATS, _MOST_OF_STEPS = (2, 16), 0.05
# Of several servers: batches are worked out for each subset of kinds.
_MOST_KINDS = 12
# Of the nodes whose level has changed so many are kinds of their own, for the same reason: those that did last.
_MOST_APART = 5
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
        self.cluster, self.rules = cluster, rules
        # Without any node set apart: the cluster, and those at the ends.
        self._whole = cluster, dict(ends or {})
        if not 0 < records < math.inf:
            raise ConfigurationError(f"planner: {records!r} records to train on; give the job data and steps")
        self._members = Members(cluster, rules.constraints, records, private or {})
        # Of each trial the records per step of the nodes that took part.
        self._history: list[tuple[dict[str, int], TrialResult]] = []
        # Nodes whose level changed, or the exchange: after how many trials, and what they did since.
        self._changed: dict[str, tuple[int, Sequence[tuple[int, float]]]] = {}
        self._again = PlannedAgain()
        self._attempts = 0
        self._prepare()
        check_batch(self._tables, rules.batch_size)
        self._refuse_too_many()

    def _prepare(self) -> None:
        """Work out what follows from the kinds, and take what was seen as that of them."""
        self._tables = [table_of(kind) for kind in self.cluster.kinds]
        self._observations = Observations(self.cluster, self._tables)
        self._ranking: Ranking | None = None
        self._batches: Counts | None = None
        exchanged_since = self._changed.get(EXCHANGE, (0,))[0]
        for number, (batches, tried) in enumerate(self._history):
            kept = {node for node in batches if number >= self._changed.get(node, (0,))[0]}
            owns = [{n: own for n, own in each.compute_seconds.items() if n in kept} for each in tried.seen]
            steps = [replace(each, compute_seconds=own) for each, own in zip(tried.seen, owns, strict=True)]
            self._observations.add(self._in_kinds(tried.trial, batches), steps, number >= exchanged_since)
        for node, (_, beside) in self._changed.items():
            self._observations.note(node, beside)

    def _in_kinds(self, trial: Trial, batches: Mapping[str, int]) -> Trial:
        """Return a trial of these nodes as one of the kinds as they are now."""
        configuration, own = self.cluster.trial_of(batches)
        return replace(trial, configuration=configuration, batches=own)

    @property
    def follows_noise(self) -> bool:
        """Whether the critical batch is to be told with each further look."""
        return self.rules.follows_noise

    def look_again(self, changed: Mapping[str, Sequence[tuple[int, float]]], again: PlannedAgain) -> None:
        """Plan what is left of a training, in which the level of some nodes has changed.

        Args:
            changed: node -> (records, seconds) of its last steps; each is of a kind of its own from now on, until so
                many others have changed that it counts as one of its first kind that deviates.
            again: what is left, and who trains.
        """
        self._again, self._attempts = replace(again, trials=len(self._history)), 0
        if again.critical_batch is not None:
            self.rules = replace(self.rules, critical_batch=again.critical_batch)
        if again.exchange:
            self._changed[EXCHANGE] = len(self._history), ()
        self._changed = {
            **{node: known for node, known in self._changed.items() if node not in changed},
            **{node: (len(self._history), steps) for node, steps in changed.items()},
        }
        self.cluster = self._members.cluster = self._parted(self._whole[0])
        self._prepare()

    def _parted(self, whole: Cluster) -> Cluster:
        """Return a cluster with each of the nodes whose level changed last as a kind of its own."""
        return reduce(Cluster.set_apart, [node for node in self._changed if node != EXCHANGE][-_MOST_APART:], whole)

    def record_seconds(self, batches: Mapping[str, int]) -> dict[str, float]:
        """Return node -> seconds in which a typical device of its kind computes a record, with these per step.

        Of more than a step may have here, as of the largest. Nothing where tables alone decide: how far they are off is
        no change.
        """
        pairs = zip(self.cluster.kinds, self._observations.curves(knees(self._tables, self.rules)), strict=True)
        tables = {node: curve.table for kind, curve in pairs for node in kind.nodes}
        most = {node: min(batch, tables[node].largest_batch) for node, batch in batches.items() if self._history}
        return {node: tables[node].seconds(batch) / batch for node, batch in most.items()}

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
        _, costs = self._affordable(ranking, rows)
        new, preference = self._steps(ranking, rows) < self.rules.steps, self.rules.preference
        weight = preference.time + preference.power + preference.energy
        gains = self._again.share * ranking.gains(rows)
        worthiest = (find_worthiest(gains, np.where(each, costs, np.inf), weight) for each in (new, True))
        if (kept := next((each for each in worthiest if each is not None), None)) is None:
            return None
        hopeful = "it would be better, and may keep to the constraints after all"
        return self._trial(ranking, int(rows[kept]), "it may be the best" if ranking.feasible[rows[kept]] else hopeful)

    def _hopeful(self, ranking: Ranking) -> Trial | None:
        """Return a trial of what likeliest keeps to the constraints where nothing is expected to; None if none may."""
        rows, chances = ranking.likeliest()
        rows = rows[chances > _DOUBTFUL]
        why = "nothing is expected to keep to the constraints; it may after all"
        rows = rows[self._steps(ranking, rows) < self.rules.steps]
        trials = (self._trial(ranking, int(row), why) for row in rows)
        return next((trial for trial in trials if trial is not None), None)

    def observe(self, trial: Trial, seen: Sequence[TrialStep]) -> None:
        """Learn from the steps of a trial; fewer than asked for where a device failed.

        Raises:
            ConfigurationError: what was seen is not positive, or of a node that there is not.
        """
        self._observations.add(trial, seen)
        self._attempts += 1
        self._ranking = None
        if seen:
            returned = {node for each in seen for node in each.compute_seconds}
            batches = {
                node: batch
                for kind, count, batch in zip(self.cluster.kinds, trial.configuration, trial.batches, strict=True)
                for node in sorted(kind.nodes, key=lambda node: node not in returned)[:count]
            }
            self._history.append((batches, TrialResult(trial, tuple(seen))))

    def lose(self, node: str) -> None:
        """Note that a node failed: it takes part in nothing any more.

        Raises:
            ConfigurationError: there is no such node, or none is left.
        """
        self._ranking = None
        self._members.lose(node)

    def regain(self, node: str) -> None:
        """Note that a node that was lost may take part again."""
        self._ranking = None
        self._members.lost.discard(node)

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
        ends = {end: ranking.at(self._parted(whole)) for end, whole in self._whole[1].items()}
        steps = self._steps(ranking, both)
        each = (there.estimates(both, steps) for there in (ranking, *ends.values()))
        estimates = dict(zip(both.tolist(), map(Estimate.with_ends, *each), strict=True))
        chosen, *_ = ranked = tuple(estimates[row] for row in rows.tolist())
        sure = ranking.sure()
        trials = tuple(replace(tried, trial=self._in_kinds(tried.trial, own)) for own, tried in self._history)
        reasons = explain(ranking, [*ends.values()], chosen.steps_measured, sure, trials, sorted(self._members.lost))
        gap, feasible = float(np.expm1(ranking.gap)), int(ranking.feasible.sum())
        return SelectionPlan(
            *(chosen, ranked, tuple(estimates[row] for row in front.tolist()), reasons, sure, gap, trials, feasible),
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
        paces = PaceTables.of(self._observations.deviations(self._members.with_lost()))
        curves = self._observations.curves(knees(self._tables, self.rules))
        model = Model(
            Figures.of(self.cluster), curves, paces, self._overhead_unit(), self.rules.constraints.unused_powered
        )
        belief = Belief(model, self._observations.data())
        devices = tuple(len(each) for each in self._members.nodes())
        exchange = sync_seconds(belief, devices), self.cluster.record_seconds
        fresh = balanced_batches(model.tables, devices, self.rules, *exchange)
        table = self._batches = best_batches(belief, self._batches, fresh, devices, self.rules)
        work = self._members.work()
        space = Space(self._members.fewest(), devices, table, work)
        found = find_configurations(space, model, belief.mode, goal_of(self.rules))
        subsets = subset_numbers(found.counts)
        points = Points(found.counts, table[subsets], subsets)
        ranking = Ranking.of(self.cluster, self.rules, belief, points, work.records(found.counts), found.gap)
        if not self._again.nodes:
            return ranking
        return ranking.keep(self.cluster.trial_of(dict.fromkeys(self._again.nodes, 1))[0], self._again.margin)

    def _overhead_unit(self) -> float:
        """Return the seconds of a table's step at the knee: what overhead and such are measured in."""
        return max(
            table.seconds(min(int(batch), table.largest_batch))
            for table, batch in zip(self._tables, knees(self._tables, self.rules), strict=True)
        )

    def _steps(self, ranking: Ranking, rows: Counts) -> Counts:
        """Return how many steps of these were measured."""
        return np.array([self._observations.steps_of(*ranking.configuration(int(row))) for row in rows], np.int64)

    def _trial(self, ranking: Ranking, number: int, why: str) -> Trial | None:
        """Return a trial, of fewer steps if what is left allows no more; None if it allows none."""
        steps = int(self._affordable(ranking, np.array([number]))[0][0])
        configuration, batches = ranking.configuration(number)
        return Trial(configuration, batches, steps, why) if steps else None

    def _affordable(self, ranking: Ranking, rows: Counts) -> tuple[Counts, Floats]:
        """Return how many steps a trial of each has, 0 where none is left, and what it costs, infinite there.

        A further trial of a configuration takes as many steps as were seen of it.
        """
        each, seen, left = self._costs(ranking, rows), self._steps(ranking, rows), self._left(ranking)
        window, few = self.rules.window, self.rules.steps
        of_job = _MOST_OF_STEPS * self._again.share * ranking.work[rows] / ranking.records[rows]
        wanted = np.minimum(np.maximum(few, seen), np.clip(of_job, *np.multiply(_REPEATS, few)) - seen)
        # Where windows of steps are dear, fewer say enough.
        one = np.maximum(each, 1e-12)
        wanted = np.minimum(wanted, np.maximum(window, _MOST_OF_SHARE * self.rules.most_share / one))
        steps = np.where(each * wanted <= left, wanted, left / one) // window * window
        return steps.clip(0).astype(np.int64), np.where(steps > 0, each * steps, np.inf)

    def _costs(self, ranking: Ranking, rows: Counts) -> Floats:
        """Return what one step costs beyond what the best would have cost, as shares of the whole training."""
        best = ranking.best
        extra = ranking.step_seconds[rows] - ranking.records[rows] * ranking.seconds[best] / ranking.work[best]
        return np.asarray(np.maximum(extra, 0.0) / ranking.seconds[best])

    def _left(self, ranking: Ranking) -> float:
        """Return the share of the whole training that trials may still cost."""
        whole, work = ranking.seconds[ranking.best], ranking.work[ranking.best]
        trials = [tried for _, tried in self._history[self._again.trials :]]
        spent = sum(each.step_seconds - one.trial.records * whole / work for one in trials for each in one.seen)
        return float(self._again.share * self.rules.most_share - max(0.0, spent) / whole)

"""Batches that STANNIS takes for equal, and which of them are taken."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from host.config.preference import Preference
from host.config.sync_section import TuningSection
from host.core.tuning.stannis_rule import BALANCED
from host.policies.selection.beliefs.belief import Belief, Data
from host.policies.selection.cluster import Cluster
from host.policies.selection.costs.step_costs import Points
from host.policies.selection.search.planned_batches import WORTH_CHANGING, balanced_batches, best_batches
from host.policies.selection.selection_rules import SelectionRules
from tests.support.examples import examples
from tests.support.planner_clusters import clusters, model_of

RULES = SelectionRules(Preference(time=1), tuning=TuningSection(slow_batch=16, knee=0.2))


@settings(max_examples=examples(20), deadline=None)
@given(clusters(), st.integers(0, 1000))
def test_no_device_ends_later_than_the_slow_one_by_more_than_is_equal(cluster: Cluster, seed: int) -> None:
    tables = model_of(cluster, seed, True)[0].tables
    for each in balanced_batches(tables, cluster.counts, RULES, np.zeros(1 << len(tables))):
        for batches in each[1:]:
            seconds = [table.seconds(int(batch)) for table, batch in zip(tables, batches, strict=True) if batch]
            slow = [own for own, batch in zip(seconds, batches[batches > 0], strict=True) if batch == 16]
            assert max(seconds) <= (1 + BALANCED) * max(slow) * (1 + 1e-9)


@settings(max_examples=examples(20), deadline=None)
@given(clusters(), st.integers(0, 1000))
def test_one_plan_where_a_margin_or_a_batch_is_given_or_time_does_not_count(cluster: Cluster, seed: int) -> None:
    tables = model_of(cluster, seed, True)[0].tables
    margin = replace(RULES, tuning=TuningSection(margin=0.1))
    for rules in (margin, replace(RULES, batch_size=8), replace(RULES, preference=Preference(power=1))):
        assert len(balanced_batches(tables, cluster.counts, rules, np.zeros(1 << len(tables)))) == 1


@settings(max_examples=examples(20), deadline=None)
@given(clusters(), st.integers(0, 1000), st.sampled_from([Preference(time=1), Preference(time=1, energy=1)]))
def test_batches_change_for_what_is_clearly_better_alone(cluster: Cluster, seed: int, preference: Preference) -> None:
    model, _, _ = model_of(cluster, seed, True)
    none = np.zeros((0, len(model.tables)), np.int64)
    rules = replace(RULES, preference=preference)
    belief = Belief(model, Data(Points(none, none), np.zeros((0, 2)), np.ones((0, 2))))
    fresh = balanced_batches(model.tables, cluster.counts, rules, np.zeros(1 << len(model.tables)))
    before = np.maximum(fresh[0] // 2, fresh[0] > 0)
    chosen = best_batches(belief, before, fresh, cluster.counts, rules)

    def score(batches: np.ndarray) -> np.ndarray:
        costs = model.costs(belief.mode, Points((batches > 0) * np.array(cluster.counts), batches))
        power = preference.power + preference.energy
        time = preference.time + preference.energy
        return np.asarray(time * np.log(costs.seconds / costs.records) + power * np.log(costs.joules / costs.seconds))

    worth = WORTH_CHANGING * (preference.time + preference.power + 2 * preference.energy)
    best = np.min([score(each[1:]) for each in fresh], axis=0)
    kept = (chosen[1:] == before[1:]).all(axis=1)
    assert (score(before[1:])[kept] <= best[kept] + worth + 1e-12).all()
    assert np.allclose(score(chosen[1:])[~kept], best[~kept])
    assert (score(chosen[1:]) <= score(before[1:]) + 1e-12).all()

"""A critical batch: configurations are compared by what learning costs, so larger batches win less."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from host.config.preference import NAMED, Preference
from host.policies.selection.cluster import Cluster, Estimate
from host.policies.selection.planner import Planner
from host.policies.selection.selection_rules import PlannedAgain, SelectionRules
from tests.support.examples import examples
from tests.support.planner_clusters import clusters, make_cluster

RECORDS = 1e6
PREFERENCES = st.sampled_from([Preference(**NAMED[name]) for name in ("time", "energy", "edp")])


def chosen(cluster: Cluster, preference: Preference, critical_batch: float | None) -> Estimate:
    return Planner(cluster, SelectionRules(preference, critical_batch=critical_batch), RECORDS).decide().chosen


def records(estimate: Estimate) -> int:
    return sum(count * batch for count, batch in zip(estimate.configuration, estimate.batches, strict=True))


@settings(max_examples=examples(10), deadline=None)
@given(clusters(most=3), PREFERENCES, st.floats(1, 1e4), st.floats(1, 10))
def test_the_smaller_the_critical_batch_the_smaller_the_step(
    cluster: Cluster, preference: Preference, critical: float, larger: float
) -> None:
    batches = [records(chosen(cluster, preference, each)) for each in (critical, critical * larger, 1e12, None)]
    assert batches[0] <= batches[1] <= batches[2] == batches[3]


@settings(max_examples=examples(10), deadline=None)
@given(clusters(most=3), PREFERENCES, st.floats(1, 1e4), st.floats(1, 1e4))
def test_a_scale_that_is_told_later_decides_as_one_that_was_known(
    cluster: Cluster, preference: Preference, before: float, told: float
) -> None:
    planner = Planner(cluster, SelectionRules(preference, follows_noise=True), RECORDS)
    assert planner.follows_noise
    assert planner.decide().chosen == chosen(cluster, preference, None)
    for scale in (before, told):
        planner.look_again({}, PlannedAgain(critical_batch=scale))
    planner.look_again({}, PlannedAgain())  # no news
    assert planner.decide().chosen == chosen(cluster, preference, told)


def test_a_larger_batch_does_not_win_on_records_a_second_alone() -> None:
    """Drives add records to a step that takes hardly longer; beyond the critical batch these are worth nothing."""
    cluster = make_cluster([4], host=False, bandwidth=1e7, seed=3)
    fast, learns = (chosen(cluster, Preference(time=1), each) for each in (None, 1.0))
    assert records(learns) < records(fast)
    rates = [each.seconds.value * (1 + records(each) / 1.0) for each in (fast, learns)]
    assert math.log(rates[1]) <= math.log(rates[0]) + 1e-9
    # Estimates and limits stay those of the job's records.
    assert learns.trained_records == fast.trained_records == RECORDS

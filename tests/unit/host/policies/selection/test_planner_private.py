"""Private records of drives that rest are trained on by nobody: each configuration has its own work."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import ConfigurationError
from host.config.preference import NAMED, Preference
from host.policies.selection.cluster import Cluster
from host.policies.selection.planner import Planner
from host.policies.selection.selection_rules import Constraints, SelectionRules
from tests.support.examples import examples
from tests.support.planner_clusters import clusters, make_cluster, take

PUBLIC = 50_000.0
PREFERENCES = st.sampled_from([Preference(**each) for each in NAMED.values()])


def private_of(cluster: Cluster, seed: int) -> dict[str, float]:
    """Each drive's own records; the host has none."""
    random = np.random.default_rng(seed)
    return {node: float(random.integers(0, 30_000)) for kind in cluster.kinds if not kind.local for node in kind.nodes}


@settings(max_examples=examples(10), deadline=None)
@given(clusters(most=3), PREFERENCES, st.integers(0, 1000))
def test_estimates_are_of_a_configurations_own_records_and_compared_by_record(
    cluster: Cluster, preference: Preference, seed: int
) -> None:
    private = private_of(cluster, seed)
    records = PUBLIC + sum(private.values())
    planner = Planner(cluster, SelectionRules(preference, steps=0), records, private)
    decided = planner.decide()
    for each in (*decided.ranked, *decided.front):
        own = sum(private.get(node, 0) for node in planner.choose_nodes(each.configuration))
        assert each.trained_records == PUBLIC + own
        steps = each.trained_records / np.dot(each.configuration, each.batches)
        assert each.seconds.value == pytest.approx(steps * each.step_seconds)
        assert each.joules.value == pytest.approx(each.watts.value * each.seconds.value)
    # By record the order is that of the same devices without a private record.
    plain = Planner(cluster, SelectionRules(preference, steps=0), records).decide()
    assert [each.configuration for each in decided.ranked] == [each.configuration for each in plain.ranked]
    assert [each.configuration for each in decided.front] == [each.configuration for each in plain.front]


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None)
@given(clusters(most=3), st.integers(0, 1000), st.floats(0.0, 1.0), st.sampled_from(["deadline", "joules"]))
def test_limits_are_of_a_configurations_own_records(cluster: Cluster, seed: int, share: float, what: str) -> None:
    private = private_of(cluster, seed)
    records = PUBLIC + sum(private.values())
    time = Preference(time=1)
    free = Planner(cluster, SelectionRules(time, steps=0), records, private).decide()
    values = {each.configuration: (each.seconds if what == "deadline" else each.joules).value for each in free.ranked}
    limit = min(values.values()) + share * (max(values.values()) - min(values.values())) * 1.0001 + 1e-9
    limits = Constraints(**{"deadline_seconds" if what == "deadline" else what: limit})
    decided = Planner(cluster, SelectionRules(time, limits, steps=0), records, private).decide()
    kept = [configuration for configuration, value in values.items() if value <= limit]
    assert [each.configuration for each in decided.ranked] == kept


@pytest.mark.slow
@settings(max_examples=examples(6), deadline=None)
@given(clusters(most=2), st.integers(0, 1000))
def test_what_is_measured_is_believed_whatever_is_private(cluster: Cluster, seed: int) -> None:
    private = private_of(cluster, seed)
    planner = Planner(cluster, SelectionRules(Preference(time=1, energy=1)), PUBLIC + sum(private.values()), private)
    while (trial := planner.next_trial()) is not None:
        planner.observe(trial, take(cluster, trial))
    chosen = planner.decide().chosen
    if chosen.steps_measured:
        steps = chosen.trained_records / np.dot(chosen.configuration, chosen.batches)
        assert chosen.seconds.value == pytest.approx(steps * chosen.step_seconds)


def test_with_more_private_records_out_of_reach_estimates_shrink_by_these_alone() -> None:
    cluster = make_cluster([2, 1], host=False)
    time = SelectionRules(Preference(time=1), steps=0)
    held = {"d0-0": 10_000.0, "d0-1": 10_000.0, "d1-0": 40_000.0}
    mine = {each.configuration: each for each in Planner(cluster, time, 100_000.0, held).decide().ranked}
    all_ours = {each.configuration: each for each in Planner(cluster, time, 100_000.0).decide().ranked}
    shares = {(2, 1): 1.0, (1, 0): 0.5, (2, 0): 0.6, (0, 1): 0.8, (1, 1): 0.9}
    for configuration, share in shares.items():
        assert mine[configuration].seconds.value == pytest.approx(share * all_ours[configuration].seconds.value)
        assert mine[configuration].watts.value == pytest.approx(all_ours[configuration].watts.value)


def test_who_has_nothing_to_train_on_is_in_no_configuration() -> None:
    """No record is public, and the host has none of its own."""
    cluster = make_cluster([2, 1], host=True)
    held = {"d0-0": 10.0, "d1-0": 10.0}
    planner = Planner(cluster, SelectionRules(Preference(time=1), steps=0), 20.0, held)
    assert {each.configuration for each in planner.decide().ranked} == {(1, 0, 0), (0, 1, 0), (1, 1, 0)}
    assert planner.choose_nodes((1, 1, 0)) == ("d0-0", "d1-0")
    with pytest.raises(ConfigurationError, match="include: host has no record to train on"):
        Planner(cluster, SelectionRules(Preference(time=1), Constraints(include=frozenset({"host"}))), 20.0, held)
    both = Constraints(exclude=frozenset({"d0-0", "d1-0"}))
    with pytest.raises(ConfigurationError, match=r"2 of 4 excluded; d0-1, host without a record"):
        Planner(cluster, SelectionRules(Preference(time=1), both), 20.0, held)
    planner.lose("d0-0")
    with pytest.raises(ConfigurationError, match="there is no device to train with"):
        planner.lose("d1-0")

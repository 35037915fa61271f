"""A device that other work slows: what it did then says nothing of its kind, and for good it is a kind of its own."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.config.preference import Preference
from host.policies.selection.cluster import Cluster, Trial, TrialStep
from host.policies.selection.level_changes import STEPS_FOR_GOOD
from host.policies.selection.planner import Planner
from host.policies.selection.selection_rules import PlannedAgain, SelectionRules
from tests.support.examples import examples
from tests.support.planner_clusters import clusters, make_cluster, take

RECORDS = 1e6
RULES = SelectionRules(Preference(time=1), batch_size=8)


def slow_steps(cluster: Cluster, trial: Trial, node: str, factor: float, steps: int) -> list[TrialStep]:
    """Steps of a trial, in the first of which a node takes longer, and the array waits for it."""
    seen = take(cluster, trial)
    for number, one in enumerate(seen[:steps]):
        if node in one.compute_seconds:
            more = (factor - 1) * one.compute_seconds[node]
            compute = one.compute_seconds | {node: one.compute_seconds[node] + more}
            seen[number] = replace(one, compute_seconds=compute, step_seconds=one.step_seconds + more)
    return seen


def play(cluster: Cluster, node: str, factor: float, steps: int) -> Planner:
    """A planner whose node is slowed in its first steps."""
    planner = Planner(cluster, RULES, RECORDS)
    while (trial := planner.next_trial()) is not None:
        seen = slow_steps(planner.cluster, trial, node, factor, max(0, steps))
        steps -= len(seen)
        planner.observe(trial, seen)
    return planner


@settings(max_examples=examples(8), deadline=None)
@given(st.floats(1.3, 8), st.integers(1, 12))
def test_a_blip_in_trials_changes_no_choice(factor: float, steps: int) -> None:
    cluster = make_cluster([3, 3], host=False, seed=4)
    calm, disturbed = (play(cluster, "d0-0", factor, each).decide() for each in (0, steps))
    assert disturbed.chosen.configuration == calm.chosen.configuration
    assert disturbed.chosen.seconds.value == pytest.approx(calm.chosen.seconds.value, rel=0.02)


def test_a_device_that_is_slowed_throughout_does_not_keep_planning_going() -> None:
    cluster = make_cluster([3, 3], host=False, seed=4)
    calm, slowed = play(cluster, "d0-0", 1.0, 0), play(cluster, "d0-0", 50.0, 1000)
    assert slowed.decide().chosen.configuration == calm.decide().chosen.configuration
    assert sum(len(each.seen) for each in slowed.decide().trials) <= 100


@given(clusters(most=3), st.data())
def test_a_cluster_with_a_device_set_apart_has_the_same_devices(cluster: Cluster, data: st.DataObject) -> None:
    nodes = [node for kind in cluster.kinds for node in kind.nodes]
    node = data.draw(st.sampled_from(nodes))
    apart = cluster.set_apart(node)
    assert sorted(each for kind in apart.kinds for each in kind.nodes) == sorted(nodes)
    assert (node,) in [kind.nodes for kind in apart.kinds]
    assert apart.set_apart(node) == apart
    assert [kind.local for kind in apart.kinds] == sorted(kind.local for kind in apart.kinds)
    counts, batches = apart.trial_of({node: 3})
    assert apart.name(counts)
    assert (sum(counts), sum(batches)) == (1, 3)


def test_what_is_left_is_planned_with_the_new_level_and_only_where_that_pays() -> None:
    cluster = make_cluster([3, 3], host=False, seed=4)

    def again(factor: float, margin: float) -> tuple[str, ...]:
        planner = play(cluster, "d0-0", 1.0, 0)
        nodes = planner.choose_nodes(planner.decide().chosen.configuration)
        expected = planner.record_seconds(dict.fromkeys(nodes, 8))
        assert cluster.kinds[0].speed is not None
        assert expected["d0-0"] == pytest.approx(cluster.kinds[0].speed.seconds(8) / 8, rel=0.05)
        steps = [(8, 8 * factor * expected["d0-0"])] * STEPS_FOR_GOOD
        planner.look_again({"d0-0": steps}, PlannedAgain(0.5, margin, nodes))
        assert planner.record_seconds({"d0-0": 8})["d0-0"] == pytest.approx(factor * expected["d0-0"], rel=0.1)
        return tuple(sorted(set(nodes) - set(planner.choose_nodes(planner.decide().chosen.configuration))))

    assert again(50.0, 0.02) == ("d0-0",)
    assert again(50.0, 1e3) == ()  # others would have to be better by more than they are
    assert again(1.0, 0.02) == ()


@pytest.mark.parametrize("counts", [[3, 3], [1, 1]])
def test_after_another_exchange_trials_before_say_nothing_of_it_and_still_of_the_devices(counts: list[int]) -> None:
    cluster = make_cluster(counts, host=False, seed=4)
    planner = Planner(cluster, RULES, RECORDS)
    for _ in range(2):
        trial = planner.next_trial()
        assert trial is not None
        seen = [
            replace(
                one,
                step_seconds=20 * one.step_seconds,
                compute_seconds={node: 2 * own for node, own in one.compute_seconds.items()},
            )
            for one in take(cluster, trial)
        ]
        planner.observe(trial, seen)
    before = planner.decide().chosen
    known = planner.record_seconds({"d0-0": 8, "d1-0": 8})
    planner.look_again({}, PlannedAgain(share=0.5, exchange=True))
    after = planner.decide().chosen
    assert after.step_seconds < 0.5 * before.step_seconds
    assert planner.record_seconds({"d0-0": 8, "d1-0": 8}) == pytest.approx(known, rel=0.02)


def test_more_records_than_a_step_may_have_are_expected_to_take_as_long_each_as_the_most() -> None:
    cluster = make_cluster([3], host=False, seed=4)
    planner = play(cluster, "d0-0", 1.0, 0)
    most = planner.cluster.kinds[0].speed.largest_batch if planner.cluster.kinds[0].speed is not None else 0
    each = planner.record_seconds({"d0-0": most, "d0-1": most + 5})
    assert each["d0-1"] == pytest.approx(each["d0-0"])
    planner.look_again({"d0-0": [(most + 5, 1.0)] * STEPS_FOR_GOOD}, PlannedAgain(share=0.5))
    assert planner.decide().chosen.step_seconds > 0


def test_kinds_stay_few_however_many_levels_change_and_the_last_ones_are_known_best() -> None:
    planner = play(make_cluster([8, 8], host=False, seed=4), "d0-0", 1.0, 0)
    nodes = planner.choose_nodes(planner.decide().chosen.configuration)
    expected = planner.record_seconds(dict.fromkeys(nodes, 8))
    levels = [(node, 1.5 + number) for number, node in enumerate([*nodes[:7], nodes[0]])]
    for node, factor in levels:
        steps = [(8, 8 * factor * expected[node])] * STEPS_FOR_GOOD
        planner.look_again({node: steps}, PlannedAgain(0.5, 0.02, nodes))
    assert len(planner.cluster.kinds) == 2 + 5
    alone = {kind.nodes[0] for kind in planner.cluster.kinds if len(kind.nodes) == 1}
    assert alone == {*nodes[3:7], nodes[0]}
    now = planner.record_seconds(dict.fromkeys(nodes, 8))
    for node in (*alone, *nodes[8:]):
        assert now[node] == pytest.approx(dict(levels).get(node, 1.0) * expected[node], rel=0.1)
    assert planner.decide().chosen.step_seconds > 0

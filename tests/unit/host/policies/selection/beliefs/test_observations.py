"""A step that something else disturbed changes no plan."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.config.preference import NAMED, Preference
from host.policies.selection.beliefs.observations import Observations, find_spikes
from host.policies.selection.cluster import Cluster, Trial, TrialStep
from host.policies.selection.costs.speed_curves import table_of
from host.policies.selection.planner import Planner
from host.policies.selection.selection_rules import SelectionRules
from tests.support.examples import examples
from tests.support.planner_clusters import clusters, make_cluster, take

RECORDS = 1e6
PREFERENCES = st.sampled_from([Preference(**each) for each in NAMED.values()])
LOGARITHMS = st.lists(st.floats(-0.3, 0.3), min_size=2, max_size=30)


@given(LOGARITHMS, st.data(), st.floats(1.8, 5))
def test_a_spike_is_found_whichever_step_it_is_and_nothing_else_is(
    logs: list[float], data: st.DataObject, much: float
) -> None:
    at = data.draw(st.integers(0, len(logs) - 1))
    calm = dict(enumerate(logs))
    assert find_spikes(calm) == set()
    assert find_spikes(calm | {at: max(logs) + much}) == {at}
    if len(logs) > 2:  # of two the shorter one is believed
        assert find_spikes(calm | {at: min(logs) - much}) == set()


@given(LOGARITHMS, st.integers(1, 30))
def test_many_long_steps_are_no_exceptions(logs: list[float], many: int) -> None:
    most = -(-len(logs) // 8)
    long = {number: value + (3.0 if number < many else 0.0) for number, value in enumerate(logs)}
    spikes = find_spikes(long)
    assert len(spikes) <= most
    if many <= min(most, (len(logs) - 1) // 2):
        assert spikes == set(range(many))
    assert find_spikes({0: 1.0}) == find_spikes({}) == set()


def spiked(cluster: Cluster, trial: Trial, at: int, times: float, seed: int) -> list[TrialStep]:
    """Steps of a trial, one of which takes so many times as long on all devices."""
    seen = take(cluster, trial, noise=0.01, seed=seed)
    if len(seen) < 2:
        return seen
    one = seen[at % len(seen)]
    compute = {node: seconds * times for node, seconds in one.compute_seconds.items()}
    seen[at % len(seen)] = replace(
        one, compute_seconds=compute, step_seconds=one.step_seconds * times, joules=one.joules * times
    )
    return seen


@pytest.mark.slow
@settings(max_examples=examples(12), deadline=None)
@given(clusters(most=3), PREFERENCES, st.integers(0, 1000), st.integers(0, 4), st.integers(0, 2))
def test_with_a_step_of_ten_times_the_choice_is_within_5_percent(
    cluster: Cluster, preference: Preference, seed: int, at: int, which: int
) -> None:
    """One step of one trial."""
    planner = Planner(cluster, SelectionRules(preference), RECORDS)
    trials = 0
    while (trial := planner.next_trial()) is not None:
        planner.observe(trial, spiked(cluster, trial, at, 10.0 if trials == which else 1.0, seed + trials))
        trials += 1
    plan = planner.decide()

    def truth(configuration: tuple[int, ...], batches: tuple[int, ...]) -> float:
        one = take(cluster, Trial(configuration, batches, 1, ""))[0]
        records = float(np.dot(configuration, batches))
        return preference.score(one.step_seconds / records, one.joules / one.step_seconds, one.joules / records)

    best = min(truth(each.configuration, each.batches) for each in plan.ranked)
    assert math.exp(truth(plan.chosen.configuration, plan.chosen.batches) - best) <= 1.05


def test_the_spike_of_one_fast_device_says_nothing_of_the_step() -> None:
    """It is not the slowest one, so the step takes only a little longer; still it is another step than usual."""
    cluster = make_cluster([1, 1], host=False, seed=2)
    planner = Planner(cluster, SelectionRules(Preference(time=1), batch_size=8), RECORDS)
    trial = planner.next_trial()
    assert trial is not None
    seen = take(cluster, trial)
    fast = min(seen[0].compute_seconds, key=seen[0].compute_seconds.__getitem__)
    compute = seen[0].compute_seconds | {fast: 10 * seen[0].compute_seconds[fast]}
    seen[0] = replace(seen[0], compute_seconds=compute, step_seconds=1.5 * seen[0].step_seconds)
    planner.observe(trial, seen)
    found = next(each for each in planner.decide().ranked if each.configuration == trial.configuration)
    assert found.step_seconds == pytest.approx(seen[1].step_seconds, rel=0.01)
    assert found.steps_measured == trial.steps


@given(st.sets(st.integers(0, 39), max_size=12), st.floats(1.3, 5.0))
def test_single_long_steps_lengthen_every_step_and_runs_or_much_longer_ones_none(long: set[int], times: float) -> None:
    cluster = make_cluster([2, 1], host=False, seed=2)
    (node, *_), configuration = cluster.kinds[0].nodes, (2, 1)
    observations = Observations(cluster, [table_of(kind) for kind in cluster.kinds])
    trial = Trial(configuration, (8, 8), 40, "")
    seen = take(cluster, trial)
    for number in long:
        compute = seen[number].compute_seconds | {node: times * seen[number].compute_seconds[node]}
        seen[number] = replace(seen[number], compute_seconds=compute, step_seconds=times * seen[number].step_seconds)
    observations.add(trial, seen)
    spikes = observations.data().spikes
    single = [number for number in long if not {number - 1, number + 1} & long]
    each = times - 1 if times < 3 else 0.0
    assert spikes == pytest.approx(len(single) * each / (40 * 3 + 100))

"""The judge of `bench planner_vms`: what every configuration costs, as it was run, beside what was chosen."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.planner.planner_cases import DEADLINE
from csd_lab.bench.planner.planner_vms import Cost, all_nodes, find_best, find_deadline, judge_decided
from host.config.preference import NAMED, Preference
from host.policies.selection.cluster import Configuration, Estimate, Range, Trial, TrialResult, TrialStep
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.selection_rules import SelectionPlan
from tests.support.planning import cluster

TIME, POWER, EDP = (Preference(**NAMED[name]) for name in ("time", "power", "edp"))
# Seconds and joules of a record, and records: the second is quicker by record, yet has more of them to do.
COSTS = {
    (1, 0): Cost(0.010, 2.0, 1000.0, 12),
    (0, 1): Cost(0.030, 3.0, 1000.0, 12),
    (1, 1): Cost(0.009, 2.7, 1500.0, 6),
}


def decided(configuration: Configuration, factor: float = 1.0, *tried: Configuration) -> TrialDecision:
    """A decision whose estimates are off by a factor, after two steps of each configuration that was tried."""
    cost = COSTS[configuration]
    values = (cost.seconds, cost.joules / cost.seconds, cost.joules, cost.seconds * cost.joules)
    batches = (32, 32)
    ranges = [Range(factor * value, value, value) for value in values]
    chosen = Estimate(configuration, batches, 1.0, cost.records, *ranges)
    trials = [
        TrialResult(Trial(each, batches, 2, ""), (TrialStep({}, COSTS[each].record_seconds * 32 * sum(each), 1.0),) * 2)
        for each in tried
    ]
    return TrialDecision(
        cluster(1, 1, host=False), SelectionPlan(chosen, (chosen,), (chosen,), (), 0.9, 0.0, tuple(trials)), {}, 1
    )


def test_configurations_are_compared_by_record() -> None:
    assert COSTS[1, 1].seconds > COSTS[1, 0].seconds
    assert find_best(COSTS, TIME) == (1, 1)
    assert find_best(COSTS, EDP) == (1, 0)
    assert find_best(COSTS, POWER) == (0, 1)
    outcome = judge_decided(COSTS, decided((1, 0)), TIME)
    assert (outcome.hit, outcome.same) == (False, False)
    assert outcome.regret == pytest.approx(0.010 / 0.009 - 1)
    assert judge_decided(COSTS, decided((1, 1)), TIME).hit


def test_a_deadline_is_of_a_configurations_own_records() -> None:
    deadline = find_deadline(COSTS)
    assert deadline == pytest.approx(DEADLINE * 10.0)
    assert find_best(COSTS, POWER, deadline) == (1, 0)
    late = judge_decided(COSTS, decided((0, 1)), POWER, deadline)
    assert (late.hit, late.kept) == (False, False)
    assert late.regret == pytest.approx(30.0 / deadline - 1)
    assert judge_decided(COSTS, decided((1, 0)), POWER, deadline).hit


@given(st.sampled_from(list(COSTS)), st.floats(0.5, 2), st.sampled_from([TIME, POWER, EDP]))
def test_estimates_are_judged_by_what_the_choice_cost(
    configuration: Configuration, factor: float, preference: Preference
) -> None:
    outcome = judge_decided(COSTS, decided(configuration, factor), preference)
    assert outcome.seconds_error == pytest.approx(factor - 1)
    assert outcome.joules_error == pytest.approx(factor - 1)
    assert outcome.overhead == 0
    assert outcome.hit == (outcome.regret <= 0.01)
    assert outcome.same == (configuration == find_best(COSTS, preference))


def test_overhead_is_what_trials_took_beyond_the_choice() -> None:
    free = judge_decided(COSTS, decided((1, 1), 1.0, (1, 1)), TIME)
    assert (free.overhead, free.trial_steps, free.trial_configurations) == (pytest.approx(0), 2, 1)
    paid = judge_decided(COSTS, decided((1, 1), 1.0, (1, 1), (0, 1)), TIME)
    assert paid.overhead == pytest.approx(2 * 32 * (0.030 - 0.009) / COSTS[1, 1].seconds)
    assert math.isclose(paid.sure or 0, 0.9)


def test_every_configuration_has_the_first_of_its_kinds() -> None:
    nodes = all_nodes(cluster(2, 1, host=True))
    assert len(nodes) == 3 * 2 * 2 - 1
    assert nodes[1, 1, 0] == ("csd-00", "csd-02")
    assert nodes[0, 0, 1] == ("host",)

"""Bands of a plan: what configurations cost, and which one is chosen, with all profiles at either end of theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.profiles.profile import End
from host.config.preference import NAMED, Preference
from host.core.figure_bands import span_of
from host.policies.selection.cluster import Cluster, Estimate, Trial, TrialResult, TrialStep
from host.policies.selection.planner import Planner
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.selection_report import describe_plan
from host.policies.selection.selection_rules import Constraints, SelectionRules
from tests.support.examples import examples
from tests.support.planner_clusters import clusters, make_cluster, take

RECORDS = 1e6
PREFERENCES = st.sampled_from([Preference(**each) for each in NAMED.values()])
growths = st.fixed_dictionaries({"low": st.floats(0.3, 1.0), "high": st.floats(1.0, 3.0)})
BANDED = ("step_seconds", "seconds", "joules", "edp")


def ends_of(cluster: Cluster, growth: Mapping[str, float], first: float = 1.0) -> dict[str, Cluster]:
    """The cluster at both ends: all kinds' computing grows alike, but that of the first kind by a power of it."""
    ends = {}
    for end in get_args(End):
        # Towards 1 for the first kind, so that another may be chosen at an end.
        factors = [growth[end] ** (first if number == 0 else 1.0) for number in range(len(cluster.kinds))]
        kinds = tuple(
            replace(kind, profile=kind.profile.at(end), encode_seconds=kind.encode_seconds * factor, growth=factor)
            for kind, factor in zip(cluster.kinds, factors, strict=True)
        )
        ends[end] = replace(cluster, kinds=kinds, host=cluster.host.at(end))
    return ends


def told(cluster: Cluster) -> Cluster:
    """A cluster whose tables have what its kinds grow by."""
    kinds = []
    for kind in cluster.kinds:
        assert kind.speed is not None
        grown = replace(kind.speed, step_seconds=kind.speed.step_seconds * kind.growth)  # encoding, too
        kinds.append(replace(kind, speed=grown, growth=1.0))
    return replace(cluster, kinds=tuple(kinds))


def value(estimate: Estimate, name: str) -> float:
    figure = getattr(estimate, name)
    return float(figure if name == "step_seconds" else figure.value)


@settings(max_examples=examples(30), deadline=None)
@given(clusters(most=3), PREFERENCES, growths, st.floats(0.0, 1.0))
def test_the_ends_are_what_a_planner_says_there_and_hold_what_is_planned_here(
    cluster: Cluster, preference: Preference, growth: dict[str, float], first: float
) -> None:
    rules, ends = SelectionRules(preference, steps=0, batch_size=8), ends_of(cluster, growth, first)
    decided = Planner(cluster, rules, RECORDS, ends=ends).decide()
    there = {end: Planner(told(each), rules, RECORDS).decide() for end, each in ends.items()}
    assert decided.at_ends == {end: cluster.name(each.chosen.configuration) for end, each in there.items()}
    of_end = {end: {each.configuration: each for each in plan.ranked} for end, plan in there.items()}
    for own in decided.ranked:
        for name in BANDED:
            low, high = (value(of_end[end][own.configuration], name) for end in get_args(End))
            assert low <= value(own, name) * (1 + 1e-9)
            assert value(own, name) <= high * (1 + 1e-9)
            assert (own.bands[name].low, own.bands[name].high) == pytest.approx((low, high))
        ends_watts = [of_end[end][own.configuration].watts.value for end in get_args(End)]
        watts = span_of([own.watts.value, *ends_watts])
        assert (own.bands["watts"].low, own.bands["watts"].high) == pytest.approx((watts.low, watts.high))


@settings(max_examples=examples(20), deadline=None)
@given(clusters(most=3), PREFERENCES)
def test_without_ends_and_with_ends_that_are_no_others_figures_are_points(
    cluster: Cluster, preference: Preference
) -> None:
    rules = SelectionRules(preference, steps=0, batch_size=8)
    for ends in (None, dict.fromkeys(get_args(End), cluster)):
        decided = Planner(cluster, rules, RECORDS, ends=ends).decide()
        assert all(band.low == band.high for own in decided.ranked for band in own.bands.values())
        assert set(decided.at_ends.values()) <= {cluster.name(decided.chosen.configuration)}


def test_what_was_measured_grows_as_the_model_says() -> None:
    """Drives take 1.7 times what their tables say; computing is nearly all of a step, so that seconds grow with it."""
    cluster = make_cluster([2], host=False, bandwidth=1e10, state_bytes=1000)
    ends = ends_of(cluster, {"low": 0.5, "high": 2.0})
    planner = Planner(cluster, SelectionRules(Preference(time=1), batch_size=8, most_share=1.0), RECORDS, ends=ends)
    while (trial := planner.next_trial()) is not None:
        planner.observe(trial, tuple(take(cluster, trial, slowdown=1.7)))
    chosen = planner.decide().chosen
    assert chosen.steps_measured > 0
    table = Planner(cluster, SelectionRules(Preference(time=1), batch_size=8, steps=0), RECORDS).decide().chosen
    assert chosen.seconds.value == pytest.approx(1.7 * table.seconds.value, rel=0.03)
    assert chosen.bands["seconds"].low == pytest.approx(0.5 * chosen.seconds.value, rel=0.01)
    assert chosen.bands["seconds"].high == pytest.approx(2.0 * chosen.seconds.value, rel=0.01)
    decided = TrialDecision(cluster, planner.decide(), {}, 0)
    told_of = describe_plan(decided, planner.rules, clock="modelled", records=RECORDS)
    assert told_of.trials
    for row in told_of.trials:
        low, high = (pytest.approx(factor * row.step_seconds, rel=0.02) for factor in (0.5, 2.0))
        assert (row.bands["step_seconds"].low, row.bands["step_seconds"].high) == (low, high)
        assert row.bands["joules"].low < row.joules < row.bands["joules"].high


@given(factor=st.floats(0.1, 10.0))
def test_a_trial_has_the_band_of_its_configuration_around_what_it_measured(factor: float) -> None:
    cluster = make_cluster([2], host=False)
    ends = ends_of(cluster, {"low": 0.5, "high": 2.0})
    planner = Planner(cluster, SelectionRules(Preference(time=1), steps=0), RECORDS, ends=ends)
    plan = planner.decide()
    step = TrialStep({}, factor * plan.chosen.step_seconds, factor)
    tried = TrialResult(Trial(plan.chosen.configuration, plan.chosen.batches, 1, ""), (step,))
    decided = TrialDecision(cluster, replace(plan, trials=(tried,)), {}, 0)
    (row,) = describe_plan(decided, planner.rules, clock="modelled", records=RECORDS).trials
    for name, own in (("step_seconds", plan.chosen.step_seconds), ("joules", plan.chosen.joules.value)):
        measured, band, of_plan = getattr(row, name), row.bands[name], plan.chosen.bands[name]
        expected = of_plan.low * measured / own, of_plan.high * measured / own
        assert (band.low, band.high) == pytest.approx(expected)
        assert band.low * (1 - 1e-9) <= measured <= band.high * (1 + 1e-9)


def test_a_trial_of_what_is_not_ranked_has_no_band() -> None:
    cluster = make_cluster([2], host=False)
    planner = Planner(cluster, SelectionRules(Preference(time=1), steps=0), RECORDS)
    tried = TrialResult(Trial((2,), (8,), 1, ""), (TrialStep({}, 1.0, 2.0),))
    plan = replace(planner.decide(), ranked=(), front=(), trials=(tried,))
    decided = TrialDecision(cluster, plan, {}, 0)
    (row,) = describe_plan(decided, planner.rules, clock="modelled", records=RECORDS).trials
    assert (row.step_seconds, row.joules, row.bands) == (1.0, 2.0, {})


@pytest.mark.parametrize("known", [True, False])
def test_what_another_configuration_would_take_says_how_much_of_both_bands_cancels(known: bool) -> None:
    """Both have the same drives, whose computing is nearly all of a step."""
    cluster = make_cluster([2], host=False, bandwidth=1e10, state_bytes=1000)
    ends = ends_of(cluster, {"low": 0.5, "high": 2.0}) if known else None
    rules = SelectionRules(Preference(time=1), batch_size=8, steps=0)
    reasons = " ".join(Planner(cluster, rules, RECORDS, ends=ends).decide().reasons)
    assert bool(re.search(r"more time \(([0-9.]+ to [0-9.]+ times; )?100% of their bands cancels\)", reasons)) == known
    assert ("bands" in reasons) == known


def test_where_nothing_keeps_to_the_limits_at_an_end_that_is_said() -> None:
    cluster = make_cluster([2], host=False)
    ends = ends_of(cluster, {"low": 0.9, "high": 3.0})
    free = Planner(cluster, SelectionRules(Preference(time=1), steps=0), RECORDS).decide().chosen
    limits = Constraints(deadline_seconds=1.2 * free.seconds.value)
    decided = Planner(cluster, SelectionRules(Preference(time=1), limits, steps=0), RECORDS, ends=ends).decide()
    assert decided.at_ends == {"low": "2 k0", "high": "nothing keeps to the limits"}

"""The planner: what it tries, what it believes, what it decides."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import ConfigurationError
from host.config.preference import NAMED, Preference, parse_preference
from host.policies.selection.cluster import Cluster, Trial, TrialStep
from host.policies.selection.planner import Planner, SelectionPlan
from host.policies.selection.search.trial_choice import find_worthiest
from host.policies.selection.selection_rules import Constraints, SelectionRules
from tests.support.examples import examples
from tests.support.planner_clusters import clusters, make_cluster, take

RECORDS = 1e6
PREFERENCES = st.sampled_from([Preference(**each) for each in NAMED.values()])
TIME, EDP = Preference(time=1), Preference(time=1, energy=1)


def plan(
    planner: Planner, slowdown: float = 1.0, noise: float = 0.0, seed: int = 0
) -> tuple[SelectionPlan, list[Trial]]:
    """What is decided after all trials that the planner wants."""
    trials: list[Trial] = []
    while (trial := planner.next_trial()) is not None:
        trials.append(trial)
        planner.observe(trial, take(planner.cluster, trial, slowdown, noise, seed + len(trials)))
        assert len(trials) < 50, "planning does not end"
    return planner.decide(), trials


def score(planner: Planner, each: object) -> float:
    """What is preferred of an estimate."""
    return planner.rules.preference.score(each.seconds.value, each.watts.value, each.joules.value)  # type: ignore[attr-defined]


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(clusters(most=3), PREFERENCES, st.integers(0, 1000))
def test_what_is_chosen_is_dominated_by_nothing(cluster: Cluster, preference: Preference, seed: int) -> None:
    planner = Planner(cluster, SelectionRules(preference), RECORDS)
    decided, _ = plan(planner, noise=0.01, seed=seed)
    chosen = decided.chosen
    assert decided.ranked[0] == chosen
    scores = [score(planner, each) for each in decided.ranked]
    assert scores == sorted(scores)
    for each in decided.ranked:
        assert not (each.seconds.value < chosen.seconds.value and each.watts.value < chosen.watts.value)
    front = [(each.seconds.value, each.watts.value) for each in decided.front]
    for one in front:
        assert not any(other[0] <= one[0] and other[1] <= one[1] and other != one for other in front)
    assert 0 <= decided.sure <= 1
    assert decided.gap == 0


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(clusters(most=3), PREFERENCES, st.integers(0, 1000), st.floats(0.5, 2))
def test_estimates_hang_together(cluster: Cluster, preference: Preference, seed: int, slowdown: float) -> None:
    planner = Planner(cluster, SelectionRules(preference), RECORDS)
    decided, _ = plan(planner, slowdown, 0.02, seed)
    for each in (*decided.ranked, *decided.front):
        steps = RECORDS / np.dot(each.configuration, each.batches)
        assert each.seconds.value == pytest.approx(steps * each.step_seconds)
        assert each.joules.value == pytest.approx(each.watts.value * each.seconds.value)
        assert each.edp.value == pytest.approx(each.joules.value * each.seconds.value)
        for quantity in (each.seconds, each.watts, each.joules, each.edp):
            assert quantity.low <= quantity.value <= quantity.high
        assert all(bool(count) == bool(batch) for count, batch in zip(each.configuration, each.batches, strict=True))


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(clusters(most=3), st.integers(1, 4), st.floats(0.7, 1.5))
def test_more_steps_without_noise_never_worsen_the_estimate(cluster: Cluster, times: int, slowdown: float) -> None:
    """Of the configuration that they are of."""
    planner = Planner(cluster, SelectionRules(TIME, most_share=1.0), RECORDS)
    trial = planner.next_trial()
    assert trial is not None
    errors = []
    for _ in range(times + 1):
        seen = take(cluster, trial, slowdown)
        planner.observe(trial, seen)
        found = next(each for each in planner.decide().ranked if each.configuration == trial.configuration)
        if found.batches != trial.batches:
            return
        errors.append(abs(np.log(found.step_seconds / seen[0].step_seconds)))
    assert errors[-1] <= errors[0] + 1e-4
    assert errors[-1] < 0.01


@pytest.mark.slow
@settings(max_examples=examples(6), deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.booleans(), st.integers(0, 1000), PREFERENCES)
def test_names_of_nodes_change_nothing(counts: list[int], host: bool, seed: int, preference: Preference) -> None:
    plans = []
    for prefix in ("d", "z-"):
        cluster = make_cluster(counts, host, seed=seed, prefix=prefix)
        decided, trials = plan(Planner(cluster, SelectionRules(preference), RECORDS), noise=0.01, seed=seed)
        plans.append((decided.chosen, [(trial.configuration, trial.batches, trial.steps) for trial in trials]))
    assert plans[0] == plans[1]


@settings(max_examples=examples(8), deadline=None)
@given(
    clusters(most=3, host=st.just(True)),
    PREFERENCES,
    st.sampled_from(["deadline_seconds", "watts", "joules"]),
    st.floats(0.0, 1.0),
)
def test_limits_hold(cluster: Cluster, preference: Preference, name: str, share: float) -> None:
    value: dict[str, Callable[[object], float]] = {
        "deadline_seconds": lambda each: each.seconds.value,  # type: ignore[attr-defined]
        "watts": lambda each: each.watts.value,  # type: ignore[attr-defined]
        "joules": lambda each: each.joules.value,  # type: ignore[attr-defined]
    }
    free = Planner(cluster, SelectionRules(preference, steps=0), RECORDS).decide()
    values = [value[name](each) for each in free.ranked]
    limit = min(values) + share * (max(values) - min(values)) * 1.0001 + 1e-9
    limits = Constraints(**{name: limit})
    decided = Planner(cluster, SelectionRules(preference, limits, steps=0), RECORDS).decide()
    assert all(value[name](each) <= limit for each in (*decided.ranked, *decided.front))
    kept = [each for each in free.ranked if value[name](each) <= limit]
    assert decided.chosen.configuration == kept[0].configuration
    impossible = Constraints(**{name: min(values) * 0.5})
    with pytest.raises(ConfigurationError, match=r"100\.0% too much"):
        Planner(cluster, SelectionRules(preference, impossible, steps=0), RECORDS).decide()


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(clusters(most=3, host=st.just(True)), st.floats(0.0, 0.5), st.sampled_from(["deadline", "watts"]))
def test_what_may_keep_to_a_limit_is_tried_where_nothing_is_expected_to(
    cluster: Cluster, share: float, what: str
) -> None:
    """The limit is a little less than the least that is expected after the first trial; the chance is 16 % or more."""
    free = Planner(cluster, SelectionRules(TIME, most_share=1.0), RECORDS)
    first = free.next_trial()
    assert first is not None
    seen = take(cluster, first)
    free.observe(first, seen)
    estimates = {each: each.seconds if what == "deadline" else each.watts for each in free.decide().ranked}
    least, expected = min(estimates.items(), key=lambda pair: pair[1].value)
    limit = expected.value * (expected.low / expected.value) ** share * (1 - 1e-9)
    limits = Constraints(**{"deadline_seconds" if what == "deadline" else what: limit})
    planner = Planner(cluster, SelectionRules(TIME, limits, most_share=1.0), RECORDS)
    planner.observe(first, seen)
    with pytest.raises(ConfigurationError, match=f"{what}: .* too much"):
        planner.decide()
    trial = planner.next_trial()
    if not least.steps_measured:
        assert trial is not None
        assert trial.steps > 0
        assert trial.configuration != first.configuration
    # With nothing left to spend it is not tried.
    poor = Planner(cluster, SelectionRules(TIME, limits, most_share=0.0), RECORDS)
    poor.observe(first, seen)
    trial = poor.next_trial()
    assert trial is None or trial.steps > 0


def test_what_keeps_to_a_limit_against_expectation_is_chosen() -> None:
    """After the first trial nothing is expected to keep to the limit; which does, only trials can tell."""
    cluster = make_cluster([3, 3], seed=1)

    def frugal(trial: Trial) -> list[TrialStep]:
        share = 0.8 if sum(trial.configuration) == 1 else 1.0
        return [replace(each, joules=each.joules * share) for each in take(cluster, trial)]

    free = Planner(cluster, SelectionRules(TIME, most_share=1.0), RECORDS)
    first = free.next_trial()
    assert first is not None
    free.observe(first, frugal(first))
    least = min(free.decide().ranked, key=lambda each: each.watts.value).watts
    limits = Constraints(watts=least.value * (least.low / least.value) ** 0.4)
    planner = Planner(cluster, SelectionRules(TIME, limits, most_share=1.0), RECORDS)
    while (trial := planner.next_trial()) is not None:
        planner.observe(trial, frugal(trial))
    chosen = planner.decide().chosen
    assert chosen.steps_measured
    assert limits.watts is not None
    assert chosen.watts.value <= limits.watts


@pytest.mark.slow
@settings(max_examples=examples(5), deadline=None)
@given(st.integers(2, 4), st.integers(0, 1000))
def test_a_large_gain_is_tried_though_it_hardly_keeps_to_the_limit(count: int, seed: int) -> None:
    """All others are measured; this one keeps to the deadline with 3 %, and steps cost next to nothing."""
    cluster, records = make_cluster([count], host=False, bandwidth=1e10, seed=seed), 1e9
    rules = SelectionRules(Preference(power=1), batch_size=16)
    every = Planner(cluster, rules, records).decide().ranked
    hidden = (1,)
    trials = [
        Trial(each.configuration, each.batches, rules.steps, "test") for each in every if each.configuration != hidden
    ]

    def told(rules: SelectionRules) -> Planner:
        planner = Planner(cluster, rules, records)
        for trial in trials:
            planner.observe(trial, take(cluster, trial, slowdown=1.2, noise=0.01, seed=seed))
        return planner

    ranked = told(rules).decide().ranked
    other = next(each for each in ranked if each.configuration == hidden)
    # The low end of a range of 95 % has 1.96 standard deviations; 1.88 leave 3 %.
    deadline = other.seconds.value * (other.seconds.low / other.seconds.value) ** 0.96
    kept = [each.watts.value for each in ranked if each.seconds.value <= deadline]
    assume(kept and min(kept) > 1.05 * other.watts.value)
    trial = told(replace(rules, constraints=Constraints(deadline_seconds=deadline))).next_trial()
    assert trial is not None
    assert trial.configuration == hidden


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 0.05)), min_size=1, max_size=8), st.floats(0.5, 3))
def test_what_is_expected_to_gain_most_beyond_its_cost_is_the_worthiest(
    each: list[tuple[float, float]], weight: float
) -> None:
    gains, costs = np.array(each).T
    found = find_worthiest(gains, costs, weight)
    worth = np.where(gains < 2e-4 * weight, -1.0, 2 * gains - costs * weight)
    if found is None:
        assert worth.max(initial=-1.0) <= 0
    else:
        assert worth[found] == pytest.approx(worth.max())
        # What cannot be paid for is not tried.
        dear = np.where(np.arange(len(costs)) == found, np.inf, costs)
        assert find_worthiest(gains, dear, weight) != found


@pytest.mark.parametrize(
    ("measured", "known"), [(True, r"\(measured in 5 steps\)"), (False, "not measured: .* to .* W with")]
)
def test_a_refusal_says_how_it_is_known(measured: bool, known: str) -> None:
    cluster = make_cluster([1], host=False)
    planner = Planner(cluster, SelectionRules(TIME, Constraints(watts=1.0), most_share=1.0), RECORDS)
    if measured:
        trial = planner.next_trial()
        assert trial is not None
        planner.observe(trial, take(cluster, trial))
    with pytest.raises(ConfigurationError, match=known):
        planner.decide()


def test_no_trial_is_taken_of_what_cannot_keep_to_a_limit() -> None:
    planner = Planner(make_cluster([2, 2]), SelectionRules(TIME, Constraints(watts=1.0)), RECORDS)
    first = planner.next_trial()
    assert first is not None
    planner.observe(first, take(planner.cluster, first))
    assert planner.next_trial() is None


def test_limits_that_are_not_kept_together_name_the_one_that_binds() -> None:
    cluster = make_cluster([3, 3])
    ranked = Planner(cluster, SelectionRules(TIME, steps=0), RECORDS).decide().ranked
    fast, cool = ranked[0], min(ranked, key=lambda each: each.watts.value)
    limits = Constraints(deadline_seconds=fast.seconds.value * 1.001, watts=cool.watts.value * 1.001)
    with pytest.raises(ConfigurationError, match="no configuration keeps to deadline and watts at once"):
        Planner(cluster, SelectionRules(TIME, limits, steps=0), RECORDS).decide()


def test_all_that_keep_to_the_limits_are_counted_and_the_best_200_ranked() -> None:
    cluster = make_cluster([7, 7, 7], host=False)
    free = Planner(cluster, SelectionRules(TIME, steps=0), RECORDS).decide()
    assert (free.feasible, len(free.ranked)) == (8**3 - 1, 200)
    few = Constraints(deadline_seconds=free.ranked[29].seconds.value)
    decided = Planner(cluster, SelectionRules(TIME, few, steps=0), RECORDS).decide()
    assert decided.feasible == len(decided.ranked) == 30


def test_only_limits_that_conflict_are_named() -> None:
    cluster = make_cluster([3, 3])
    ranked = Planner(cluster, SelectionRules(TIME, steps=0), RECORDS).decide().ranked
    fast, cool = ranked[0], min(ranked, key=lambda each: each.watts.value)
    joules = max(each.joules.value for each in ranked) * 2
    limits = Constraints(fast.seconds.value * 1.001, cool.watts.value * 1.001, joules)
    with pytest.raises(ConfigurationError, match="keeps to deadline and watts at once") as raised:
        Planner(cluster, SelectionRules(TIME, limits, steps=0), RECORDS).decide()
    assert "joules" not in str(raised.value)


@settings(max_examples=examples(8), deadline=None)
@given(clusters(most=3), st.sets(st.sampled_from(["deadline_seconds", "watts", "joules"]), min_size=1))
def test_every_limit_that_nothing_keeps_to_is_named(cluster: Cluster, tight: set[str]) -> None:
    limits = Constraints(**{name: 1e-3 if name in tight else 1e15 for name in ("deadline_seconds", "watts", "joules")})
    with pytest.raises(ConfigurationError) as raised:
        Planner(cluster, SelectionRules(TIME, limits, steps=0), RECORDS).decide()
    for name in ("deadline_seconds", "watts", "joules"):
        assert (f"{name.removesuffix('_seconds')}: " in str(raised.value)) == (name in tight)
    assert str(raised.value).count("allow more") == 1


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(clusters(most=3, host=st.just(True)), st.data())
def test_included_nodes_take_part_and_excluded_ones_do_not(cluster: Cluster, data: st.DataObject) -> None:
    names = [node for kind in cluster.kinds for node in kind.nodes]
    include = data.draw(st.frozensets(st.sampled_from(names), max_size=2))
    rest = [name for name in names if name not in include]
    exclude = data.draw(st.frozensets(st.sampled_from(rest), max_size=max(0, len(rest) - 1))) if rest else frozenset()
    if len(exclude) == len(names):
        return
    planner = Planner(cluster, SelectionRules(EDP, Constraints(include=include, exclude=exclude)), RECORDS)
    decided, trials = plan(planner)
    for configuration in (*(trial.configuration for trial in trials), *(each.configuration for each in decided.ranked)):
        nodes = planner.choose_nodes(configuration)
        assert include <= set(nodes)
        assert not exclude & set(nodes)
        assert len(nodes) == len(set(nodes)) == sum(configuration)


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(
    clusters(most=3),
    PREFERENCES,
    st.sampled_from([0.0, 0.002, 0.01, 0.05]),
    st.floats(2e3, 1e6),
    st.sampled_from([(5, 1), (6, 3), (8, 8)]),
)
@example(make_cluster([2, 1]), TIME, 0.05, 2e4, (8, 8))
@example(make_cluster([3, 2]), TIME, 0.05, 2e4, (6, 3))
def test_the_budget_is_never_exceeded_and_trials_have_whole_windows(
    cluster: Cluster, preference: Preference, share: float, records: float, asked: tuple[int, int]
) -> None:
    """By what the planner believes before each trial; where devices are as their tables say, that is so."""
    steps, window = asked
    planner = Planner(cluster, SelectionRules(preference, steps=steps, window=window, most_share=share), records)
    seconds = done = 0.0
    taken = Counter[tuple[int, ...]]()
    while (trial := planner.next_trial()) is not None:
        assert 0 < trial.steps <= max(steps, taken[trial.configuration])
        taken[trial.configuration] += trial.steps
        assert trial.steps % window == 0
        seen = take(cluster, trial)
        seconds += sum(each.step_seconds for each in seen)
        done += len(seen) * float(np.dot(trial.configuration, trial.batches))
        planner.observe(trial, seen)
    best = planner.decide().chosen.seconds.value
    assert seconds - done / records * best <= (share * 1.1 + 1e-3) * best


def test_a_single_device_is_chosen_at_once() -> None:
    planner = Planner(make_cluster([1], host=False), SelectionRules(TIME), RECORDS)
    decided, trials = plan(planner)
    assert decided.chosen.configuration == (1,)
    assert decided.sure == 1
    assert {trial.configuration for trial in trials} == {(1,)}


def test_zero_devices_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="there is no device to train with; add one to the array"):
        Planner(make_cluster([], host=False), SelectionRules(TIME), RECORDS)


def test_all_devices_excluded_are_refused() -> None:
    cluster = make_cluster([2], host=False)
    with pytest.raises(ConfigurationError, match=r"\(2 of 2 excluded\); exclude fewer"):
        Planner(cluster, SelectionRules(TIME, Constraints(exclude=frozenset(cluster.kinds[0].nodes))), RECORDS)


@pytest.mark.parametrize("word", ["include", "exclude"])
def test_unknown_nodes_are_refused(word: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{word}: 'nobody' is no device here"):
        Planner(make_cluster([2]), SelectionRules(TIME, Constraints(**{word: frozenset({"nobody"})})), RECORDS)


def test_bad_rules_are_refused(subtests: pytest.Subtests) -> None:
    for make in [
        lambda: Constraints(watts=0.0),
        lambda: Constraints(deadline_seconds=float("nan")),
        lambda: Constraints(include=frozenset("a"), exclude=frozenset("a")),
        lambda: SelectionRules(TIME, steps=-1),
        lambda: SelectionRules(TIME, window=0),
        lambda: SelectionRules(TIME, steps=5, window=3),
        lambda: SelectionRules(TIME, most_share=2.0),
        lambda: SelectionRules(TIME, confidence=1.0),
        lambda: SelectionRules(TIME, batch_size=0),
        lambda: Planner(make_cluster([1]), SelectionRules(TIME), 0.0),
        lambda: Planner(make_cluster([1]), SelectionRules(TIME, batch_size=129), RECORDS),
    ]:
        with subtests.test(make=make), pytest.raises(ConfigurationError):
            make()


@pytest.mark.slow
@settings(max_examples=examples(6), deadline=None)
@given(clusters(most=3, host=st.just(True)), PREFERENCES, st.data())
def test_a_lost_device_takes_part_in_nothing_and_nothing_else_is_lost(
    cluster: Cluster, preference: Preference, data: st.DataObject
) -> None:
    names = [node for kind in cluster.kinds for node in kind.nodes]
    lost = data.draw(st.sampled_from(names))
    planner = Planner(cluster, SelectionRules(preference), RECORDS)
    trial = planner.next_trial()
    assert trial is not None
    nodes = planner.choose_nodes(trial.configuration)
    seen = take(cluster, trial)
    # It fails in the last step.
    failed = {node: each for node, each in seen[-1].compute_seconds.items() if node != lost}
    steps = [*seen[:-1], replace(seen[-1], compute_seconds=failed)]
    if data.draw(st.booleans(), "lost first"):
        planner.lose(lost)
        planner.observe(trial, steps)
    else:
        planner.observe(trial, steps)
        planner.lose(lost)
    decided, trials = plan(planner)
    assert lost in nodes
    for configuration in (*(each.configuration for each in trials), *(each.configuration for each in decided.ranked)):
        assert lost not in planner.choose_nodes(configuration)
    assert decided.trials[0].trial == trial
    assert any(lost in reason for reason in decided.reasons)


def test_an_included_device_that_fails_is_told() -> None:
    planner = Planner(
        make_cluster([2, 2]), SelectionRules(EDP, Constraints(include=frozenset({"d0-0"})), steps=0), RECORDS
    )
    assert not any("to be included" in each for each in planner.decide().reasons)
    planner.lose("d1-0")
    assert not any("to be included" in each for each in planner.decide().reasons)
    planner.lose("d0-0")
    reasons = planner.decide().reasons
    assert [each for each in reasons if each.startswith("d0-0 failed and was to be included: ")]
    assert "d0-0, d1-0 failed and take part in nothing." in reasons


def test_the_last_device_cannot_be_lost() -> None:
    planner = Planner(make_cluster([1], host=False), SelectionRules(TIME), RECORDS)
    with pytest.raises(ConfigurationError, match="lost"):
        planner.lose("d0-0")


def test_when_the_rest_is_lost_fewer_are_to_be_excluded() -> None:
    planner = Planner(
        make_cluster([2], host=False), SelectionRules(TIME, Constraints(exclude=frozenset({"d0-1"}))), RECORDS
    )
    with pytest.raises(ConfigurationError, match=r"\(1 of 2 excluded; d0-0 lost\); exclude fewer"):
        planner.lose("d0-0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "prefer: 'fast' is no quantity; write time, power"),
        ("time=1,fast=2", "prefer: 'time=1,fast=2': 'fast' is no quantity; write time, power"),
        ("time=1,time=2", "prefer: 'time=1,time=2': 'time' is there twice; give it one weight"),
    ],
)
def test_an_unknown_preference_and_one_that_is_there_twice_are_told_apart(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_preference(text)
    assert str(raised.value).startswith(message)


def test_what_cannot_be_is_refused_and_nothing_is_taken(subtests: pytest.Subtests) -> None:
    for field in ["step_seconds", "joules", "compute_seconds"]:
        for value in [0.0, -1.0, float("nan"), float("inf")]:
            with subtests.test(value=value, field=field):
                planner = Planner(make_cluster([2]), SelectionRules(TIME), RECORDS)
                trial = planner.next_trial()
                assert trial is not None
                good = take(planner.cluster, trial)
                wrong = {**good[0].compute_seconds, "d0-0": value} if field == "compute_seconds" else value
                bad = replace(good[0], **{field: wrong})
                before = planner.decide()
                with pytest.raises(ConfigurationError):
                    planner.observe(trial, [good[0], bad])
                assert planner.decide() == before


def test_without_steps_tables_alone_decide() -> None:
    planner = Planner(make_cluster([2, 2]), SelectionRules(EDP, steps=0), RECORDS)
    assert planner.next_trial() is None
    assert planner.decide().trials == ()


def test_a_kind_without_a_table_is_learned() -> None:
    cluster = make_cluster([2, 2])
    blind = replace(cluster, kinds=tuple(replace(kind, speed=None) for kind in cluster.kinds))
    planner = Planner(blind, SelectionRules(TIME), RECORDS)
    for _ in range(16):
        if (trial := planner.next_trial()) is None:
            break
        planner.observe(trial, take(cluster, replace(trial, batches=tuple(min(128, b) for b in trial.batches))))
        if max(trial.batches) > 128:
            return
    found = planner.decide().chosen
    truth = take(cluster, Trial(found.configuration, found.batches, 1, ""))[0]
    assert found.step_seconds == pytest.approx(truth.step_seconds, rel=0.05)


def test_planning_ends_where_nothing_is_ever_seen() -> None:
    planner = Planner(make_cluster([2]), SelectionRules(TIME), RECORDS)
    for _ in range(100):
        if (trial := planner.next_trial()) is None:
            break
        planner.observe(trial, [])
    assert planner.next_trial() is None


def test_without_a_share_to_spend_only_what_seems_best_is_run() -> None:
    planner = Planner(make_cluster([2, 2], seed=3), SelectionRules(TIME, most_share=0.0), RECORDS)
    best = planner.decide().chosen.configuration
    trial = planner.next_trial()
    assert trial is not None
    assert trial.configuration == best


def test_an_empty_trial_changes_nothing() -> None:
    planner = Planner(make_cluster([2]), SelectionRules(TIME), RECORDS)
    trial = planner.next_trial()
    assert trial is not None
    before = planner.decide()
    planner.observe(trial, [])
    assert planner.decide() == before


def test_a_slow_device_is_found_out_and_left_out() -> None:
    """Three drives of a kind of which tables say that they help; they are 30 times slower."""
    cluster = make_cluster([3, 3], host=False, bandwidth=1e10, state_bytes=1000)

    def seen_of(trial: Trial) -> list[TrialStep]:
        result = []
        for each in take(cluster, trial):
            compute = {
                node: value * (30 if node.startswith("d0") else 1) for node, value in each.compute_seconds.items()
            }
            longer = each.step_seconds - max(each.compute_seconds.values()) + max(compute.values())
            result.append(TrialStep(compute, longer, each.joules * longer / each.step_seconds))
        return result

    planner = Planner(cluster, SelectionRules(TIME, Constraints(), batch_size=8), RECORDS)
    while (trial := planner.next_trial()) is not None:
        planner.observe(trial, seen_of(trial))
    assert planner.decide().chosen.configuration == (0, 3)

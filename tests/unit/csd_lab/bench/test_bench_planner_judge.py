"""`bench planner`'s judge: rules, deadlines, overhead and figures; a bad planner scores badly, a knowing one well."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from csd_lab.bench.planner import bench_planner as planner
from csd_lab.bench.planner import planner_cases
from csd_lab.bench.planner.bench_planner import compare, is_sensitive, play_case, sensitivity, summarise
from csd_lab.bench.planner.planner_cases import (
    DEADLINE,
    PlannerCase,
    Truth,
    all_configurations,
    find_truth,
    fixed_rules,
    job_records,
    list_cases,
    make_cluster,
)
from csd_lab.bench.planner.planner_play import (
    best_of,
    judge,
    judge_ranked,
    play,
    play_exhaustive,
    play_rules,
    time_planning,
)
from host.config.preference import NAMED, Preference
from host.policies.selection.cluster import Cluster, Configuration, Estimate, Range, Trial, TrialStep
from host.policies.selection.selection_rules import SelectionPlan, SelectionRules

CASES = list_cases()
SENSITIVE = {"steps", "noise", "default_tuning"}


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Iterator[None]:
    """The laws hold for any number of steps and drives; a thousand of 479 configurations take a second a case."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner_cases, "COUNTS", (2, 1, 1, 2))
        patch.setattr(planner_cases, "STEPS", 40)
        yield


@pytest.fixture(scope="module")
def truth() -> Truth:
    return find_truth(case_of("resnet50", "edp", 2e9), 0)


def case_of(model: str, preference: str, link: float) -> PlannerCase:
    wanted = (model, preference, link)
    return next(case for case in CASES if (case.model, case.preference, case.link_bytes_per_second) == wanted)


def strip(value: object) -> object:
    """A row without the wall seconds in it."""
    if isinstance(value, dict):
        return {name: strip(each) for name, each in value.items() if name != "wall_seconds"}
    return value


class Fixed:
    """A planner that decided long ago, and tries what it is told to try first."""

    def __init__(self, truth: Truth, number: int, tries: Sequence[int], factor: float = 1.0) -> None:
        self.truth, self.number, self.tries, self.factor = truth, number, list(tries), factor
        self.cluster = truth.world.cluster
        self.seen: list[TrialStep] = []
        self.follows_noise = False

    def __call__(self, cluster: Cluster, rules: SelectionRules, records: float) -> "Fixed":
        assert cluster == self.truth.world.cluster
        assert rules.constraints.deadline_seconds == self.truth.deadline_seconds
        assert records == self.truth.records
        return self

    def next_trial(self) -> Trial | None:
        if not self.tries:
            return None
        number = self.tries.pop(0)
        return Trial(self.truth.configurations[number], self.truth.batches[number], 5, "told to")

    def observe(self, trial: Trial, seen: Sequence[TrialStep]) -> None:
        assert len(seen) == trial.steps
        self.seen += seen

    def choose_nodes(self, configuration: Configuration) -> tuple[str, ...]:
        return self.truth.world.first_nodes(configuration)

    def decide(self) -> SelectionPlan:
        truth, number = self.truth, self.number
        seconds, joules = truth.seconds[number] * self.factor, truth.joules[number] * self.factor
        ranges = [Range(value, value, value) for value in (seconds, joules / seconds, joules, seconds * joules)]
        chosen = Estimate(truth.configurations[number], truth.batches[number], 1.0, truth.records, *ranges)
        return SelectionPlan(chosen, (chosen,), (chosen,), (), 1.0, 0.0, ())


def hand_made(truth: Truth, **changes: object) -> Truth:
    """Three configurations: fast and hungry, slow and frugal, and one that is worse at both."""
    small = {"configurations": truth.configurations[:3], "batches": truth.batches[:3]}
    costs = {"seconds": np.array([10.0, 20.0, 30.0]), "joules": np.array([400.0, 300.0, 500.0])}
    return replace(truth, **small, **costs, **changes)  # type: ignore[arg-type]


def test_the_cases_are_60_and_every_preference_meets_every_model_link_and_power() -> None:
    assert len(CASES) == 60
    assert len({(case.model, case.preference, case.link_bytes_per_second) for case in CASES}) == 60
    assert {case.preference for case in CASES} == set(NAMED)
    assert sum(case.unused_powered for case in CASES) == 30
    sensitive = [case for case in CASES if is_sensitive(case)]
    assert len(sensitive) == len({(case.model, case.preference) for case in sensitive}) == 20
    assert {case.link_bytes_per_second for case in sensitive} == set(planner_cases.LINKS_BYTES_PER_SECOND)


def test_the_best_is_the_best_by_what_is_preferred(truth: Truth) -> None:
    for preference, best in (("time", 0), ("energy", 1), ("edp", 0), ("power", 1)):
        made = hand_made(truth, preference=Preference(**NAMED[preference]), deadline_seconds=None)
        assert made.best == best
        assert made.regret(made.seconds[best], made.joules[best]) == 0
        assert made.hit(made.seconds[best], made.joules[best])
    edp = hand_made(truth, preference=Preference(time=1, energy=1), deadline_seconds=None)
    assert edp.regret(20.0, 300.0) == pytest.approx(6000 / 4000 - 1)
    assert edp.regret(9.0, 300.0) == 0  # better than the oracle's is no regret
    assert edp.hit(10.0, 403.9)
    assert not edp.hit(10.0, 404.1)


def test_with_a_deadline_who_is_late_is_not_best_and_no_hit(truth: Truth) -> None:
    power = hand_made(truth, preference=Preference(power=1), deadline_seconds=15.0)
    assert power.best == 0
    assert not power.hit(20.0, 300.0)
    assert power.regret(20.0, 300.0) == pytest.approx(20 / 15 - 1)
    assert power.regret(14.0, 40.0 * 14) == 0
    assert not power.hit(15.3, 15.3 * 40)
    assert power.hit(15.1, 15.1 * 40)
    assert (power.kept(15.1), power.kept(15.3)) == (True, False)
    assert best_of(power, [(20.0, 300.0), (14.0, 700.0), (12.0, 700.0)]) == 1
    assert best_of(power, [(20.0, 300.0), (16.0, 700.0)]) == 1


def test_power_has_twice_the_fastest_time_and_nothing_else_has_a_deadline() -> None:
    power = find_truth(case_of("mobilenet_v2", "power", 125e6), 0)
    assert power.deadline_seconds == pytest.approx(DEADLINE * power.seconds.min())
    assert np.isinf(power.scores).any()
    # Without it there would be nothing to plan: one small drive draws least.
    rules = fixed_rules(power.world.cluster)
    free = replace(power, deadline_seconds=None)
    least = power.configurations[free.best]
    assert sum(least) <= 2
    assert least[-1] == 0
    assert power.configurations.index(rules["smallest"]) in np.flatnonzero(np.isinf(power.scores))
    assert find_truth(case_of("mobilenet_v2", "edp", 125e6), 0).deadline_seconds is None


def test_rules_are_what_they_say(truth: Truth) -> None:
    cluster = truth.world.cluster
    assert fixed_rules(cluster) == {
        "all devices": (2, 1, 1, 2, 1),
        "host only": (0, 0, 0, 0, 1),
        "smallest": (0, 0, 1, 0, 0),
        "fastest": (0, 0, 0, 2, 1),
    }
    outcomes = play_rules(truth)
    for name, configuration in fixed_rules(cluster).items():
        number = truth.configurations.index(configuration)
        assert outcomes[name].seconds == pytest.approx(truth.seconds[number])
        assert outcomes[name].hit == (truth.scores[number] <= truth.scores.min() + np.log(1.01))
    assert outcomes["smallest"].regret > 1
    assert len(all_configurations(cluster)) == len(truth.configurations) == 3 * 2 * 2 * 3 * 2 - 1
    assert job_records(make_cluster("resnet50", 2e9)) == truth.records


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_there_are_hard_cases_for_any_seed(seed: int) -> None:
    truths = [find_truth(case_of(*of), seed) for of in (("vgg16", "energy", 2e9), ("resnet50", "edp", 125e6))]
    truths += [find_truth(case_of(*of), seed) for of in (("inception_v3", "edp", 2e9), ("alexnet", "power", 125e6))]
    assert any(not any(outcome.hit for outcome in play_rules(truth).values()) for truth in truths)


def test_a_bad_planner_scores_badly_and_a_knowing_one_well(truth: Truth) -> None:
    case, worst = case_of("resnet50", "edp", 2e9), int(truth.scores.argmax())
    generator = np.random.default_rng
    knowing = play(truth, case, 5, generator(0), Fixed(truth, truth.best, []))
    assert (knowing.hit, knowing.regret, knowing.overhead, knowing.trial_steps) == (True, 0.0, 0.0, 0)
    assert knowing.seconds_error == pytest.approx(0)
    bad = play(truth, case, 5, generator(0), Fixed(truth, worst, [worst, worst], factor=1.5))
    assert not bad.hit
    assert bad.regret == pytest.approx(float(np.exp(truth.scores[worst] - truth.scores[truth.best])) - 1)
    assert (bad.seconds_error, bad.joules_error) == (pytest.approx(0.5), pytest.approx(0.5))
    figures = summarise([knowing.row(), bad.row()])
    assert figures["hit_rate"] == figures["within_5_percent"] == 0.5
    assert figures["mean_regret"] == pytest.approx(bad.regret / 2)
    assert figures["worst_regret"] == bad.regret
    assert figures["time_estimate_error_median"] == pytest.approx(0.25)


def test_the_best_devices_with_dear_batches_are_no_hit(truth: Truth) -> None:
    number = truth.best
    few = tuple(min(batch, 1) for batch in truth.batches[number])
    dear = judge(truth, truth.configurations[number], few)
    assert dear.regret > 0.05
    assert (dear.hit, dear.same, dear.kept) == (False, True, True)
    figures = summarise([dear.row()])
    assert figures["hit_rate"] == figures["within_5_percent"] == 0
    assert figures["hit_rate_same_configuration"] == 1


@pytest.mark.parametrize(
    ("same", "kept", "regret", "rates"),
    [
        (False, True, 0.0, (1, 1, 1)),
        (False, True, 0.03, (0, 1, 0)),
        (True, True, 0.03, (0, 1, 1)),
        (True, True, 0.06, (0, 0, 1)),
        (True, False, 0.03, (0, 0, 0)),
        (False, False, 0.0, (0, 0, 0)),
    ],
)
def test_rates_are_by_metric_and_nobody_who_is_late_counts(
    truth: Truth, same: bool, kept: bool, regret: float, rates: tuple[int, ...]
) -> None:
    good = judge(truth, truth.configurations[truth.best], truth.batches[truth.best])
    figures = summarise([replace(good, hit=kept and regret <= 0.01, same=same, kept=kept, regret=regret).row()])
    names = ("hit_rate", "within_5_percent", "hit_rate_same_configuration")
    assert tuple(figures[name] for name in names) == rates


def plan_of(
    truth: Truth, numbers: Sequence[int], measured: int, factor: float, wide: float, sure: float
) -> SelectionPlan:
    """A plan that ranks these configurations; its estimates are off by a factor, with ranges of a width."""

    def about(value: float) -> Range:
        return Range(value * factor, value * factor / wide, value * factor * wide)

    costs = [(float(truth.seconds[number]), float(truth.joules[number])) for number in numbers]
    ranked = tuple(
        Estimate(
            truth.configurations[number],
            truth.batches[number],
            1.0,
            truth.records,
            about(seconds),
            about(joules / seconds),
            about(joules),
            about(seconds * joules),
            steps_measured=5 * (place < measured),
        )
        for place, (number, (seconds, joules)) in enumerate(zip(numbers, costs, strict=True))
    )
    return SelectionPlan(ranked[0], ranked, ranked[:1], (), sure, 0.0, ())


def test_estimates_of_what_was_not_measured_are_judged_too(truth: Truth) -> None:
    order = [int(number) for number in truth.scores.argsort()]
    fair = judge_ranked(truth, plan_of(truth, order[:9], 2, 1.2, 1.3, 1.0), Fixed(truth, 0, []))
    assert (fair["none_better"], fair["unmeasured"]) == (1, 7)
    assert (fair["seconds_error"], fair["joules_error"]) == (pytest.approx(0.2), pytest.approx(0.2))
    assert (fair["seconds_covered"], fair["joules_covered"]) == (1, 1)
    narrow = judge_ranked(truth, plan_of(truth, [order[-1], *order[:5]], 6, 1.2, 1.1, 1.0), Fixed(truth, 0, []))
    assert narrow == {"none_better": 0, "unmeasured": 0}
    narrow = judge_ranked(truth, plan_of(truth, [order[-1], *order[:5]], 0, 1.2, 1.1, 0.9), Fixed(truth, 0, []))
    assert (narrow["seconds_covered"], narrow["joules_covered"]) == (0, 0)
    outcome = judge(truth, truth.configurations[truth.best], truth.batches[truth.best])
    rows = [replace(outcome, sure=sure, ranked=each).row() for sure, each in ((1.0, fair), (0.9, narrow))]
    figures = summarise(rows)
    assert (figures["sure_mean"], figures["none_better"]) == (pytest.approx(0.95), 0.5)
    assert figures["interval_coverage"] == figures["interval_coverage_energy"] == 0.5
    assert figures["time_estimate_error_ranked"] == pytest.approx(0.2)
    assert "interval_coverage" not in summarise([outcome.row()])


def test_who_is_late_has_something_better(truth: Truth) -> None:
    slow, fast = int(truth.seconds.argmax()), int(truth.seconds.argmin())
    dated = replace(truth, preference=Preference(power=1), deadline_seconds=2 * float(truth.seconds.min()))
    plan = plan_of(truth, [slow], 0, 1.0, 1.1, 1.0)
    assert judge_ranked(dated, plan, Fixed(truth, 0, []))["none_better"] == 0
    plan = plan_of(truth, [fast, slow], 0, 1.0, 1.1, 1.0)
    assert judge_ranked(dated, plan, Fixed(truth, 0, []))["none_better"] == 1


def test_overhead_is_what_trials_cost_beyond_what_the_choice_would_have_taken(truth: Truth) -> None:
    case, best, worst = case_of("resnet50", "edp", 2e9), truth.best, int(truth.seconds.argmax())
    same, dear = Fixed(truth, best, [best, best]), Fixed(truth, best, [worst])
    free = play(truth, case, 5, np.random.default_rng(1), same)
    assert abs(free.overhead) < 0.01 * 10 * sum(truth.batches[best]) / truth.records + 0.01
    paid = play(truth, case, 5, np.random.default_rng(1), dear)
    records = 5 * np.dot(truth.batches[worst], truth.configurations[worst])
    spent = sum(seen.step_seconds for seen in dear.seen)
    assert paid.overhead == pytest.approx(spent / paid.seconds - records / truth.records)
    assert paid.overhead > 0
    assert (paid.trial_configurations, paid.trial_steps) == (1, 5)


def test_without_noise_a_run_of_everything_estimates_rightly_and_costs_much() -> None:
    truth = find_truth(case_of("resnet50", "time", 125e6), 1, noise=0.0)
    tried = play_exhaustive(truth, 2, np.random.default_rng(0))
    assert tried.seconds_error == pytest.approx(0, abs=1e-9)
    assert tried.joules_error == pytest.approx(0, abs=1e-9)
    assert tried.trial_steps == 2 * len(truth.configurations)
    assert tried.overhead > 1
    assert tried.regret == 0
    assert tried.configuration == truth.configurations[truth.best]


def test_figures_of_others_and_of_sensitivities_are_those_of_their_rows(truth: Truth) -> None:
    good = judge(truth, truth.configurations[truth.best], truth.batches[truth.best])
    wrong = replace(good, hit=False, regret=0.5, seconds_error=0.1, joules_error=0.2)
    right = replace(good, seconds_error=0.0, joules_error=0.0)
    rows = [
        {"rules": {"host only": right.row()}, "tables": wrong.row(), "exhaustive": {"1": right.row()}}
        | ({"steps": {"1": wrong.row(), "5": right.row()}, "noise": {"0.01": right.row()}} if number else {})
        for number in range(2)
    ]
    others = compare(rows)
    assert others["rule: host only"]["hit_rate"] == 1
    assert others["our planner before any trial"]["mean_regret"] == 0.5
    assert others["Gu et al.: 1 step of every configuration"]["worst_regret"] == 0
    tried = sensitivity(rows)
    assert tried["steps"]["1"]["hit_rate"] == 0
    assert tried["steps"]["5"]["hit_rate"] == 1
    assert tried["noise"]["0.01"]["energy_estimate_error_median"] == 0


@pytest.mark.slow
def test_a_case_is_played_by_everyone_and_can_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_cases, "COUNTS", (1, 1, 1, 1))
    monkeypatch.setattr(planner, "SENSITIVE_STEPS", (2, 5))
    monkeypatch.setattr(planner, "SENSITIVE_NOISE", (0.0,))
    case = next(case for case in CASES if case.model == "mobilenet_v2" and is_sensitive(case))
    row = play_case(3, case, True)
    assert strip(play_case(3, case, False)) == strip({name: row[name] for name in row if name not in SENSITIVE})
    assert row["ours"]["trial_steps"] > 0
    assert row["ours"]["seconds_error"] is not None
    assert row["tables"]["trial_steps"] == 0
    assert 0 < row["ours"]["trial_share"] < 1
    assert row["known"]["same"]
    assert (list(row["steps"]), list(row["noise"])) == (["2", "5"], ["0"])
    assert row["steps"]["5"] == row["ours"]
    assert row["ours"]["ranked"]["unmeasured"] > 0
    assert 0 <= row["ours"]["ranked"]["seconds_covered"] <= 1
    assert row["as_good"] >= 1
    decoded = msgspec.json.decode(msgspec.json.encode(row))
    assert decoded["best"]["batches"] == list(row["best"]["batches"])
    assert {"hit_rate", "overhead", "time_estimate_error_median"} <= summarise([row["ours"]]).keys()


def test_a_look_and_a_whole_planning_are_two_figures() -> None:
    short, long = {"next_trial": 1.0, "decide": 0.5}, {"next_trial": 3.0, "decide": 1.0}
    figures = planner.time_figures([[short, short, short], [short, long], [long, long, long]])
    assert figures == {"plan_seconds": pytest.approx(2.75), "plan_seconds_whole": pytest.approx(5.5)}


@pytest.mark.slow
def test_planning_is_timed_trial_by_trial() -> None:
    case = CASES[40]
    world = planner_cases.make_world(case, 0)
    rules = SelectionRules(Preference(time=1), steps=2, tuning=planner_cases.TUNING)
    rows = time_planning(world, rules, job_records(world.cluster), np.random.default_rng(0))
    assert rows
    assert all(each["next_trial"] >= 0 and each["decide"] > 0 for each in rows)

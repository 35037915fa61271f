"""The bench of all tuners in one job: scenarios, simulated runs, the oracle, and the figures."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.joint_tuning import joint_cases
from csd_lab.bench.joint_tuning.bench_joint_tuning import NAIVE, TOGETHER, ScenarioResult, together_figures
from csd_lab.bench.joint_tuning.joint_cases import (
    CUT,
    JOINING,
    LOST,
    MODELS,
    PROFILES,
    SLOWED,
    JointScenario,
    ScenarioWorld,
    draw_scenario,
    request_of,
)
from csd_lab.bench.joint_tuning.joint_development_seeds import DEVELOPMENT_SEEDS
from csd_lab.bench.joint_tuning.joint_final_seeds import FINAL_SEEDS
from csd_lab.bench.joint_tuning.joint_oracle import ScenarioOracle
from csd_lab.bench.joint_tuning.simulated_training import SimulatedTraining, _WorldAccountant, simulate_training
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Trained
from host.core.device_time import WALL
from host.training.accounting import IN_TIME, DeviceReport, Lateness, make_accountant

SMALL = JointScenario(1, "late heavy layers", (2, 1, 0), 2e7, 1e-4, True, SLOWED, 0, 0.4, 0.8, 0.3)


def run(scenario: JointScenario, **keys: object) -> SimulatedTraining:
    return simulate_training(request_of(scenario, **{"batch_size": 32, **keys}), ScenarioWorld(scenario))


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_cases, "STEPS", 60)
    monkeypatch.setattr(joint_cases, "RECORDS", 20_000)
    joint_cases.load_model.cache_clear()


def test_no_seed_of_the_final_figures_is_one_of_the_development() -> None:
    assert not set(FINAL_SEEDS) & set(DEVELOPMENT_SEEDS)
    assert len(set(FINAL_SEEDS)) == 200


@given(st.integers(0, 10**6))
def test_scenarios_are_drawn_from_their_ranges_and_again_the_same(seed: int) -> None:
    drawn = draw_scenario(seed)
    assert drawn == draw_scenario(seed)
    assert drawn.model in MODELS
    assert 4 <= sum(drawn.counts) <= 24
    assert len(drawn.counts) == len(PROFILES)
    assert 1e7 <= drawn.bandwidth <= 1e9
    assert 0 <= drawn.device < sum(drawn.counts)
    assert 0 < drawn.begin < drawn.end <= 1
    assert 0.1 <= drawn.factor <= 0.75
    assert len(drawn.array().list_devices()) == sum(drawn.counts)


@pytest.mark.parametrize("kind", [SLOWED, CUT, LOST, JOINING])
def test_what_happens_does_so_between_its_begin_and_its_end(kind: str) -> None:
    world = ScenarioWorld(replace(SMALL, kind=kind, device=1))
    for done in (0.0, 0.39, 0.4, 0.79, 0.8, 1.0):
        on = 0.4 <= done < 0.8
        assert world.slowness("newp-01", done, 8) == pytest.approx(1 / 0.3 if on and kind == SLOWED else 1.0)
        assert world.slowness("newp-00", done, 8) == 1.0
        assert world.link_share(done) == (0.3 if on and kind == CUT else 1.0)
        gone = on if kind == LOST else kind == JOINING and done < 0.4
        assert set(world.absent(done)) == ({"newp-01"} if gone else set())


def test_a_run_is_the_same_again_and_without_tuners_as_long_as_the_world_says() -> None:
    first, again = (run(replace(SMALL, bandwidth=1e9, device=2)) for _ in range(2))
    assert [step.array_seconds for step in first.steps] == [step.array_seconds for step in again.steps]
    assert len(first.steps) == 60
    assert first.records == 60 * 3 * 32
    assert first.retunes == []
    slow = [step.array_seconds for step in first.steps[24:48]]
    assert min(slow) > 1.5 * max(step.array_seconds for step in first.steps[:24])


def test_a_step_in_which_somebody_is_late_is_composed_each_time_and_others_once() -> None:
    request = request_of(SMALL, batch_size=32)
    accountant = _WorldAccountant(make_accountant(request.config, request.models), ScenarioWorld(SMALL))
    trained = Trained(1, 32, 1, 0.0, PhaseSeconds(), 100)
    report = DeviceReport("newp-00", WALL, trained, 1, 32, 10**6, 10**6, 32)
    accountant.go_to(1, 0.0)
    late, again = (accountant.account([report], Lateness(None, ["newp-00"])) for _ in range(2))
    assert accountant._composed == {}
    assert late.array_seconds == again.array_seconds
    for _ in range(3):
        accountant.account([report], IN_TIME)
    assert len(accountant._composed) == 1


def test_hypertune_notices_and_a_planner_takes_the_drive_that_joins() -> None:
    tuned = run(SMALL, tuner="hypertune")
    assert tuned.retunes
    assert 0 < tuned.decision_seconds < 60
    joining = run(replace(SMALL, kind=JOINING, device=1), planner={"prefer": "time"}, tuner="hypertune")
    assert "newp-01" not in {part.device for part in joining.steps[0].devices}
    assert "newp-01" in {part.device for part in joining.steps[-1].devices}


@pytest.mark.long
@settings(max_examples=4, deadline=None)
@given(st.sampled_from([SLOWED, CUT, LOST]), st.floats(1e7, 1e9), st.booleans())
def test_nobody_beats_the_oracle_by_much(kind: str, bandwidth: float, shared: bool) -> None:
    """It looks at a grid of batches and settings, so it may be beaten by what lies between."""
    scenario = replace(SMALL, kind=kind, bandwidth=bandwidth, shared=shared)
    best = ScenarioOracle(scenario, 32).records_per_second()
    for keys in ({}, {"placement": "auto"}, {"tuner": "hypertune", "placement": "auto"}):
        assert run(scenario, **keys).records_per_second <= 1.06 * best


def test_figures_are_those_of_the_results() -> None:
    rates = {NAIVE: 1.0, "batches": 2.0, "transfers": 1.0, "split": 1.5, "devices": 1.0}
    joules = dict.fromkeys(rates, 4.0)
    results = [
        ScenarioResult("a", {**rates, TOGETHER: 4.0}, {**joules, TOGETHER: 3.0}, 2.0, 4.0, (0, 0), 0.001),
        ScenarioResult("b", {**rates, TOGETHER: 1.0}, {**joules, TOGETHER: 3.0}, 8.0, 4.0, (0, 0), 0.003),
    ]
    figures = together_figures(results)
    assert figures["together_over_best_alone"] == pytest.approx(1.0)
    assert figures["worst_over_best_alone"] == 0.5
    assert figures["together_over_naive"] == pytest.approx(2.0)
    assert figures["share_of_oracle"] == pytest.approx(0.5)
    assert figures["energy"] == pytest.approx(math.sqrt(0.5 * 2))
    assert figures["decision_share_median"] == pytest.approx(0.002)
    assert figures["decision_share_worst"] == 0.003

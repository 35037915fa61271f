"""Whole jobs with a slowed drive: the oracle is never behind, the judge shares no code with the planner's model."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.planner import planner_cases, planner_disturbance, planner_draws, planner_oracle, planner_world
from csd_lab.bench.planner.bench_planner import disturbed_cases, disturbed_figures, spread_figures
from csd_lab.bench.planner.planner_cases import Truth, find_truth, list_cases
from csd_lab.bench.planner.planner_disturbance import DriveDisturbance, draw_disturbance
from csd_lab.bench.planner.planner_jobs import job_noise, loss, play_disturbances, play_job
from csd_lab.bench.planner.planner_ranges import KINDS, PlannerRanges

CASE = next(case for case in list_cases() if case.model == "resnet50" and case.preference == "time")


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner_cases, "COUNTS", (2, 1, 1, 2))
        patch.setattr(planner_cases, "STEPS", 200)
        yield


@pytest.fixture(scope="module")
def truth() -> Truth:
    return find_truth(CASE, 5)


@pytest.mark.parametrize("module", [planner_world, planner_draws, planner_oracle, planner_disturbance])
def test_the_judge_shares_no_code_with_the_planners_model(module: object) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())  # type: ignore[attr-defined]
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    of_the_planner = [name for name in names if name.startswith("host.policies.selection")]
    assert set(of_the_planner) <= {"host.policies.selection.cluster"}  # its types
    assert not [name for name in names if name.startswith("csd_emu.perfmodel")]


@given(st.sampled_from(KINDS), st.floats(1.1, 8.0))
def test_a_slowdown_is_that_of_32_records_whatever_its_kind(kind: str, slowdown: float) -> None:
    world = planner_cases.make_world(CASE, 5)
    factors = DriveDisturbance("a72-00", kind, slowdown).factors(world, np.array([1, 32, 400]))
    assert factors[1] == pytest.approx(slowdown)
    assert (factors >= 1 - 1e-9).all()
    # A batch of 1 is unharmed by who takes bandwidth, and harmed most by what comes to every step.
    assert {"factor": factors[0] == factors[1], "bandwidth": factors[0] == 1, "extra": factors[0] > factors[1]}[kind]


def test_it_acts_when_it_says() -> None:
    blip = DriveDisturbance("a", "factor", 2.0, first_step=3, steps=12)
    assert [step for step in range(30) if blip.slows_in(step, 0.0)] == list(range(3, 15))
    assert [blip.steps_until(step, 0.0, 1.0) for step in (0, 3, 14, 15)] == [3, 12, 1, float("inf")]
    change = DriveDisturbance("a", "factor", 2.0, at_seconds=10.0)
    assert [change.slows_in(0, seconds) for seconds in (9.9, 10.0, 1e9)] == [False, True, True]
    assert [change.steps_until(0, seconds, 3.0) for seconds in (0.0, 9.9, 10.0)] == [4, 1, float("inf")]


def test_draws_are_within_their_ranges_and_repeat() -> None:
    ranges = PlannerRanges()
    drawn = [draw_disturbance(np.random.default_rng(n), ["a", "b"], ["b"], ranges) for n in range(200)]
    assert drawn == [draw_disturbance(np.random.default_rng(n), ["a", "b"], ["b"], ranges) for n in range(200)]
    assert all(ranges.slowdown[0] <= each.slowdown <= ranges.slowdown[1] for each, _ in drawn)
    assert all(ranges.change_at[0] <= at <= ranges.change_at[1] for _, at in drawn)
    assert {each.first_step for each, _ in drawn} == set(range(ranges.blip_first[0], ranges.blip_first[1] + 1))
    assert 0.8 < np.mean([each.node == "b" for each, _ in drawn]) < 0.95


def test_a_job_trains_all_its_records_and_a_blip_costs_what_it_must(truth: Truth) -> None:
    noise = job_noise(truth, 5, CASE)
    quiet, again = (play_job(truth, CASE, noise) for _ in range(2))
    assert quiet == again
    assert loss(truth, quiet, quiet) == 0
    # As many steps as the batches at its end need, about: the trials have others.
    assert quiet.steps == pytest.approx(truth.records / sum(quiet.batches.values()), rel=0.5)
    node = next(node for node in quiet.chosen if node.startswith("a72"))
    blip = play_job(truth, CASE, noise, [DriveDisturbance(node, "factor", 4.0, 0, 12)])
    # 12 steps of 4 times, had nobody done anything, are 36 more of some 200, and trials that are taken again.
    assert 0 <= loss(truth, blip, quiet) < 0.4
    forever = play_job(truth, CASE, noise, [DriveDisturbance(node, "factor", 4.0, at_seconds=0.3 * quiet.seconds)])
    assert loss(truth, forever, quiet) > 0


def test_nobody_beats_the_oracle_and_figures_are_of_seeds(truth: Truth) -> None:
    rows = [play_disturbances(seed, CASE) for seed in (5, 6)]
    assert all(row["quiet_over_oracle"] <= 1.005 and row["change_over_oracle"] <= 1.005 for row in rows)
    figures = disturbed_figures(rows)
    assert figures["blip_loss"] == pytest.approx(np.mean([row["blip_loss"] for row in rows]))
    assert figures["blip_loss_low"] <= figures["blip_loss"] <= figures["blip_loss_worst"]
    assert figures["change_over_oracle_worst"] == min(row["change_over_oracle"] for row in rows)


def test_an_interval_is_over_seeds_and_not_over_cases() -> None:
    rows = [{"seed": seed, "value": value} for seed, value in ((1, 0.0), (1, 2.0), (2, 1.0), (2, 3.0))]
    figures = spread_figures("x", rows, lambda own: float(np.mean([row["value"] for row in own])))
    assert figures["x"] == 1.5
    assert figures["x_high"] - figures["x"] == pytest.approx(figures["x"] - figures["x_low"])
    assert figures["x_high"] > 2


def test_three_seeds_in_a_row_have_each_model_with_each_preference() -> None:
    each = [(case.model, case.preference) for seed in (7, 8, 9) for case in disturbed_cases(seed)]
    assert len(each) == len(set(each)) == 15

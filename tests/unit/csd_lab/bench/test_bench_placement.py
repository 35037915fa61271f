"""What `bench placement` holds against what: its judge, its cases, its rivals."""

from dataclasses import replace

import numpy as np
import pytest

from csd_lab.bench.placement import placement_cases
from csd_lab.bench.placement.placement_cases import (
    COMPUTE_BOUND,
    WIRE_BOUND,
    CutJudge,
    PlacementCase,
    bound_cases,
    disturb,
    regret,
)
from csd_lab.bench.placement.placement_wall import REGRET_CASES, candidates, placement_of, situation_of
from csd_lab.bench.placement.placements import MODELS, WireCount, gradient_cases
from csd_lab.bench.training.bench_gradients import BATCHES
from host.policies.split.choose_cut import decide
from host.training.split.split_model import NONE


@pytest.mark.parametrize("overlapped", [False, True])
def test_the_judge_says_of_what_was_measured_what_is_predicted(overlapped: bool) -> None:
    situation = PlacementCase("alexnet", 3, 1.0, overlapped, mixed=True).situation()
    judge, rows = CutJudge(situation), decide(situation, heavy=0.0).rows
    known = [row for row in rows if row.step_seconds is not None and not row.refused]
    assert len(known) > 1
    for row in known:
        assert judge.seconds(row.drive_layers) == pytest.approx(row.step_seconds, rel=0.02)


def test_the_judge_knows_other_seconds_than_the_decision() -> None:
    seen = PlacementCase("alexnet", 3, 1.0, False).situation()
    truth = disturb(seen, np.random.default_rng(3))
    assert CutJudge(truth).seconds(3) != pytest.approx(CutJudge(seen).seconds(3), rel=1e-6)
    assert CutJudge(truth).seconds(len(seen.layers)) == pytest.approx(CutJudge(seen).seconds(len(seen.layers)))


def test_regret_is_what_a_better_cut_would_have_won(monkeypatch: pytest.MonkeyPatch) -> None:
    case = PlacementCase("alexnet", 3, 8.0, False)
    good = regret(case, np.random.default_rng(0))
    assert (good["chosen"], good["best"], good["regret"]) == ("16", "16", 0.0)
    monkeypatch.setattr(CutJudge, "seconds", lambda self, cut: 20.0 - cut)
    wrong = regret(case, np.random.default_rng(0))
    assert wrong["best"] is None
    assert wrong["regret"] == pytest.approx(wrong["chosen_seconds"] / wrong["best_seconds"] - 1)
    assert wrong["regret"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("ratios", "low", "high"), [(COMPUTE_BOUND, 0.0, 1 / 5), (WIRE_BOUND, 5.0, np.inf)])
def test_wire_or_compute_really_dominates(ratios: tuple[float, ...], low: float, high: float) -> None:
    cases = [case for case in bound_cases(ratios) if case.model == "mobilenet_v2"]
    assert {case.overlapped for case in cases} == {False, True}
    assert {case.drives for case in cases} == set(placement_cases.DRIVES)
    for case in cases:
        situation = case.situation()
        crossing = case.drives * sum(layer.push_bytes for layer in situation.layers)
        wire = crossing / situation.link.bytes_per_second
        compute = max(drive.forward_seconds + drive.backward_seconds for drive in situation.drives)
        assert low * 0.999 <= wire / compute <= high * 1.001


@pytest.mark.slow
def test_what_is_chosen_meets_its_closest_rivals_on_the_wall_clock() -> None:
    assert sum(len(candidates(case)) for case in REGRET_CASES) == 12
    for case in REGRET_CASES:
        chosen, *others = candidates(case)
        decision = decide(situation_of(case), heavy=0.0)
        foretold = {row.layer or NONE: row.step_seconds for row in decision.rows if not row.refused}
        assert chosen == placement_of(decision)
        assert NONE in (chosen, *others)
        left_out = [seconds for name, seconds in foretold.items() if name not in (chosen, *others)]
        rivals = [foretold[name] for name in others if name != NONE]
        assert all(rival <= other for rival in rivals for other in left_out)


@pytest.mark.slow
def test_gradients_are_those_of_five_models_cut_early_and_late_with_unequal_batches() -> None:
    cases = list(gradient_cases())
    assert len(set(BATCHES)) == len(BATCHES) > 1
    assert {case.model for case in cases} == set(MODELS) >= {"vgg16", "resnet50", "inception_v3"}
    for model in MODELS:
        assert len({case.layer for case in cases if case.model == model}) >= 2
    assert {case.batch_norm for case in cases} == {"device", "synchronised", "frozen"}


def test_wire_errors_are_of_bytes_and_of_their_ratio() -> None:
    assert WireCount(1000, 100, 1000, 100).error == 0
    assert WireCount(1010, 101, 1000, 100).error == pytest.approx(0.01)
    assert WireCount(1000, 105, 1000, 100).error == pytest.approx(0.05)


def test_decisions_are_timed_for_equal_and_for_unequal_drives() -> None:
    cases = placement_cases.decision_cases(5, 8)
    kinds = {name: len({replace(each, device="") for each in case.drives}) for name, case in cases.items()}
    assert set(kinds.values()) == {1, 4}
    assert all((count == 4) == name.startswith("unequal") for name, count in kinds.items())
    assert {case.sending is None for name, case in cases.items() if kinds[name] == 4} == {False, True}
    assert placement_cases.decision_seconds(5, 8, 1).keys() == cases.keys()

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_lab.bench.federated import federated_runs as runs
from csd_lab.bench.federated.federated_runs import HELD_ROUNDS, HeldTarget, RememberedSteps, TrainedRound
from csd_lab.bench.harness import request_run
from firmware_agent.common.errors import Diverged
from host.core.datasets import load_digits
from host.fleet.shards import deal_out
from host.training.federated import FederatedTraining

ACCURACIES = st.lists(st.sampled_from([0.5, 0.9]), min_size=1, max_size=12)
TARGET = HeldTarget(accuracy=0.9, rounds=12)


def rounds_of(accuracies: list[float]) -> list[TrainedRound]:
    return [TrainedRound(accuracy, seconds=float(n), joules=100.0 * n) for n, accuracy in enumerate(accuracies, 1)]


@given(ACCURACIES)
def test_a_run_is_charged_up_to_the_first_round_from_which_it_holds_the_target(accuracies: list[float]) -> None:
    ends = [n for n in range(1, len(accuracies) + 1) if runs.holds(TARGET, rounds_of(accuracies[:n]))]
    trained = rounds_of(accuracies[: ends[0]] if ends else accuracies)
    cost = runs.cost_of(TARGET, trained)
    assert cost.reached == bool(ends)
    if ends:
        assert set(accuracies[cost.rounds - 1 : cost.rounds + HELD_ROUNDS - 1]) == {0.9}
        assert cost.rounds == 1 or accuracies[cost.rounds - 2] < 0.9
        assert cost.seconds == sum(range(1, cost.rounds + 1))
        assert cost.joules == 100 * cost.seconds
        assert cost.rounds <= TARGET.rounds


@given(st.lists(st.sampled_from([0.5, 0.89]), min_size=1, max_size=12))
def test_a_run_that_does_not_reach_the_target_costs_all_rounds(accuracies: list[float]) -> None:
    trained = rounds_of(accuracies)
    cost = runs.cost_of(TARGET, trained, refused=2)
    mean_seconds = sum(one.seconds for one in trained) / len(trained)
    assert (cost.reached, cost.rounds, cost.refused, cost.last_accuracy) == (False, TARGET.rounds, 2, accuracies[-1])
    assert cost.seconds == pytest.approx(TARGET.rounds * mean_seconds)
    assert cost.joules == pytest.approx(100 * cost.seconds)


def test_one_good_round_holds_nothing() -> None:
    assert not runs.holds(TARGET, rounds_of([0.9] * (HELD_ROUNDS - 1)))
    assert not runs.holds(TARGET, rounds_of([0.9] * HELD_ROUNDS + [0.5]))
    assert runs.holds(TARGET, rounds_of([0.5] + [0.9] * HELD_ROUNDS))


def test_thinned_records_are_some_of_the_data_set_and_those_held_out_stay() -> None:
    data = load_digits(1)
    thin = runs.thin_out(data, 100, 7)
    assert thin.fields["image"].shape == (100, 1, 8, 8)
    whole = {(image.tobytes(), int(label)) for image, label in zip(*data.fields.values(), strict=True)}
    assert {(image.tobytes(), int(label)) for image, label in zip(*thin.fields.values(), strict=True)} <= whole
    assert thin.held_out["image"] is data.held_out["image"]
    np.testing.assert_array_equal(runs.thin_out(data, 100, 7).fields["label"], thin.fields["label"])
    assert (runs.thin_out(data, 100, 8).fields["label"] != thin.fields["label"]).any()


def test_jobs_of_one_seed_share_split_and_first_weights_and_differ_in_their_keys() -> None:
    one, other = (
        runs.make_request(0.3, 100, 5, {"strategy": strategy}) for strategy in ("fedavg", {"name": "fedprox", "mu": 1})
    )
    assert (one.proximal, other.proximal) == (0.0, 1.0)
    first, second = (
        deal_out(each.dataset, each.array.data, each.config.list_devices(), each.array.seed).private
        for each in (one, other)
    )
    for left, right in zip(first, second, strict=True):
        np.testing.assert_array_equal(left, right)
    for name, array in one.evaluator.initial_weights().items():
        np.testing.assert_array_equal(array, other.evaluator.initial_weights()[name])


def test_remembered_steps_are_the_tables() -> None:
    job = {"model": runs.MODEL, "data": {"source": "digits", "partition": {"dirichlet": 0.3}}}
    models = request_run(runs.ARRAY, job).models
    assert len(models) == runs.DRIVES
    model = models["csd-00"]
    remembered = RememberedSteps(model)
    for batch in (1, 7, 32, 7):
        assert remembered.step_seconds(batch) == model.step_seconds(batch)
        assert remembered.covers(batch) == model.covers(batch)
    assert remembered.encode_seconds == model.encode_seconds
    assert remembered.at("low").step_seconds(8) == model.at("low").step_seconds(8)


def test_a_run_repeats_and_a_strategy_that_is_fedavg_costs_the_same(tmp_path: Path) -> None:
    target = HeldTarget(accuracy=0.99, rounds=2)
    costs = [
        runs.run_to(target, runs.make_request(0.3, 100, 5, {"strategy": strategy}), tmp_path / str(number))
        for number, strategy in enumerate(("fedavg", "fedavg", {"name": "fedprox", "mu": 0}))
    ]
    assert costs[0] == costs[1] == costs[2]
    assert costs[0].rounds == 2
    assert min(astuple(costs[0])[1:5]) > 0


def test_a_run_whose_weights_are_no_numbers_any_more_counts_as_one_that_never_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, trained = FederatedTraining.run_round, list[int]()

    async def run_round(training: FederatedTraining) -> object:
        if len(trained) == most:
            raise Diverged("not finite")
        trained.append(1)
        return await real(training)

    monkeypatch.setattr(FederatedTraining, "run_round", run_round)
    most = 1
    cost = runs.run_to(HeldTarget(0.01, 8), runs.make_request(0.3, 100, 5, {}), tmp_path / "one")
    assert (cost.reached, cost.rounds) == (False, 8)
    most = 0
    trained.clear()
    with pytest.raises(Diverged):
        runs.run_to(HeldTarget(0.01, 8), runs.make_request(0.3, 100, 5, {}), tmp_path / "none")

import json
import math
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import LayerCost, TensorCost, scale_compute
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_lab.bench.communication.analytic_predictor import AnalyticPredictor
from csd_lab.generate.autobyte.meta_network import (
    RECIPE_FILE,
    NetworkPredictor,
    load_network,
    shipped_network,
    shipped_weights,
)
from csd_lab.generate.autobyte.network_features import NAMES, Features
from csd_lab.generate.autobyte.synthetic_cases import draw_conditions
from csd_lab.generate.autobyte.train_network import (
    TRAINED_SLICE_BYTES,
    Sweep,
    TrainingRecipe,
    make_net,
    simulate_case,
    train,
    write,
)
from firmware_agent.common.errors import DataError
from firmware_agent.common.send_queue import TransferSettings
from host.policies.transfer.link_conditions import Conditions
from host.policies.transfer.setting_grid import candidates
from host.policies.transfer.speedup_predictor import SimulatedSettings
from tests.support.communication_tuning import COSTS, FIRST, LINK
from tests.support.examples import examples

HERE = Conditions(COSTS, 2, LINK)
seeds = st.integers(0, 10**6)


@settings(max_examples=examples(30))
@given(seeds, st.floats(0.01, 100), st.floats(0.1, 10))
def test_features_do_not_depend_on_the_units_of_time_and_of_bytes(seed: int, time: float, size: float) -> None:
    """Everything twice as slow, or twice as large on a link twice as fast, looks the same."""
    drawn = draw_conditions(np.random.default_rng(seed))
    link = drawn.link
    rows, unit = Features().rows(drawn, candidates())
    slow = SharedLink(link.bytes_per_second / time, link.latency_seconds * time, link.slice_seconds * time)
    slowed = Conditions(scale_compute(drawn.costs, time), drawn.participants, slow, drawn.block_bytes)
    same, longer = Features().rows(slowed, candidates())
    assert same == pytest.approx(rows, abs=1e-6)
    assert longer == pytest.approx(unit * time)
    assert np.isfinite(rows).all()
    assert rows.shape == (len(candidates()), len(NAMES))


def test_features_know_another_model_when_they_see_one() -> None:
    features = Features()
    before, _ = features.rows(HERE, [FIRST])
    other = (LayerCost("only", (TensorCost("only.weight", 1000),), 0.1, 0.1),)
    after, _ = features.rows(Conditions(other, 2, LINK), [FIRST])
    assert not np.array_equal(before, after)
    assert np.array_equal(features.rows(HERE, [FIRST])[0], before)


def test_a_model_without_bytes_or_seconds_has_features_too() -> None:
    empty = (LayerCost("none", (), 0.0, 0.0),)
    rows, _ = Features().rows(Conditions(empty, 1, SharedLink(1e8, 0.0)), candidates())
    assert np.isfinite(rows).all()


def test_the_shipped_network_is_that_of_its_recipe() -> None:
    import hashlib

    data = shipped_weights().read_bytes()
    told = json.loads(shipped_weights().with_name(RECIPE_FILE).read_text(encoding="utf-8"))
    assert len(data) < 200_000
    assert told["sha256"] == hashlib.sha256(data).hexdigest()
    assert told["features"] == list(NAMES)
    assert told["candidates"] == len(candidates(TRAINED_SLICE_BYTES))
    assert set(told["held_out"]) >= {"speed_up_error_median", "regret_mean"}


@pytest.mark.slow
def test_the_shipped_network_chooses_better_than_chance_on_cases_it_has_not_seen() -> None:
    regrets, chances = [], []
    network, analytic = shipped_network(), AnalyticPredictor()
    for number in range(12):
        drawn = draw_conditions(np.random.default_rng([99, number]))
        chosen = [candidates()[index] for index in range(number % 7, len(candidates()), 7)]
        told = SimulatedSettings().log_seconds(drawn, chosen)
        regrets.append(float(told[network.log_seconds(drawn, chosen).argmin()] - told.min()))
        chances.append(float(np.median(told) - told.min()))
        assert np.isfinite(analytic.log_seconds(drawn, chosen)).all()
    assert np.mean(regrets) < np.mean(chances) / 3


def test_the_network_without_torch_is_the_network() -> None:
    net = make_net((8, 8))
    linears = [layer for layer in net if isinstance(layer, torch.nn.Linear)]
    tensors = {"mean": np.ones(len(NAMES), np.float32), "scale": np.full(len(NAMES), 2, np.float32)}
    for number, layer in enumerate(linears):
        tensors |= {f"weight{number}": layer.weight.detach().numpy(), f"bias{number}": layer.bias.detach().numpy()}
    rows, _ = Features().rows(HERE, candidates())
    with torch.no_grad():
        wanted = net((torch.from_numpy(rows.astype(np.float32)) - 1) / 2)[:, 0]
    assert NetworkPredictor(tensors).log_seconds(HERE, candidates()) == pytest.approx(wanted.numpy(), abs=1e-5)


def weights(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    width = len(NAMES)
    good = {
        "mean": np.zeros(width, np.float32),
        "scale": np.ones(width, np.float32),
        "weight0": np.zeros((1, width), np.float32),
        "bias0": np.zeros(1, np.float32),
    }
    return {name: tensor for name, tensor in (good | changes).items() if tensor is not None}


def test_weights_that_do_not_fit_are_refused() -> None:
    NetworkPredictor(weights())
    wrong = np.zeros((1, 3), np.float32)
    for changes in (
        {"mean": None}, {"bias0": None}, {"weight0": wrong}, {"more": wrong}, {"weight0": None, "bias0": None},
        {"scale": wrong[0]}, {"weight0": np.zeros((2, len(NAMES)), np.float32), "bias0": np.zeros(2, np.float32)},
    ):  # fmt: skip
        with pytest.raises(DataError, match="train it again"):
            NetworkPredictor(weights(**changes))


def test_a_file_that_is_no_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "network.safetensors"
    with pytest.raises(DataError, match=r"network\.safetensors"):
        load_network(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="cannot be read"):
        load_network(path)


@pytest.mark.slow
def test_training_gives_the_same_weights_again_and_learns(tmp_path: Path) -> None:
    recipe = TrainingRecipe(3, cases=24, settings=4, hidden=(8,), epochs=60, batch=8, held_out=6)
    parts = [simulate_case(3, number, 4) for number in range(30)]
    rows, logs = (np.stack(part) for part in zip(*parts, strict=True))
    found, held = Sweep(rows[:24], logs[:24]), Sweep(rows[24:], logs[24:])
    first, scores = train(recipe, found, held)
    again, _ = train(recipe, found, held)
    assert safetensors.torch.save(first) == safetensors.torch.save(again)
    assert set(scores) >= {"regret_mean", "regret_of_shortlist_mean"}
    write(tmp_path, recipe, first, scores)
    network = load_network(tmp_path / "network.safetensors")
    assert np.isfinite(network.log_seconds(HERE, candidates())).all()
    # On what it was trained on it is better than a network that says nothing.
    trained, _ = train(recipe, found, found)
    untrained, _ = train(TrainingRecipe(3, 24, 4, (8,), 0, 8, held_out=6), found, found)
    assert trained.keys() == untrained.keys()
    assert (
        train(recipe, found, found)[1]["regret_mean"]
        < train(TrainingRecipe(3, 24, 4, (8,), 0, 8, held_out=6), found, found)[1]["regret_mean"]
    )


@pytest.mark.slow
def test_a_case_depends_on_its_number_alone() -> None:
    one, two = simulate_case(1, 5, 3), simulate_case(1, 5, 3)
    other = simulate_case(1, 6, 3)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not np.array_equal(one[1], other[1])


@pytest.mark.slow
def test_what_was_simulated_once_is_kept_and_another_model_is_not_taken_for_it() -> None:
    simulated = SimulatedSettings()
    few = candidates()[:4]
    first = simulated.log_seconds(HERE, few)
    assert np.array_equal(simulated.log_seconds(HERE, few), first)
    assert not np.array_equal(simulated.log_seconds(Conditions(COSTS, 3, LINK), few), first)
    slower = Conditions(scale_compute(COSTS, 3.0), 2, LINK)
    assert not np.array_equal(simulated.log_seconds(slower, few), first)


def test_the_simulation_knows_slice_sizes_and_credits_apart() -> None:
    """In the released ByteScheduler a tuned slice size changes nothing; here a step depends on both."""
    small, large, scarce = (
        TransferSettings("priority", 8 << 10, 1 << 20),
        FIRST,
        TransferSettings("priority", 256 << 10, 256 << 10),
    )
    logs = SimulatedSettings().log_seconds(HERE, [small, large, scarce])
    assert len({round(float(log), 9) for log in logs}) == 3
    assert not math.isclose(*AnalyticPredictor().log_seconds(HERE, [small, large]))

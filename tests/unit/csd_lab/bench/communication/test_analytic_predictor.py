from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost, compute_seconds, exchange_bytes
from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from csd_emu.perfmodel.overlap.steady_steps import steady_step_seconds
from csd_lab.bench.communication.analytic_predictor import predict_steps
from firmware_agent.common.send_queue import TransferSettings
from tests.support.communication import links, models, sendings

counts = st.integers(1, 4)


def drawn(random: np.random.Generator) -> tuple[Costs, SharedLink, list[TransferSettings]]:
    """A model of 4 to 16 layers, a link on which its bytes take 0.1 to 10 times what it computes, settings for it."""
    layers, total, seconds = int(random.integers(4, 16)), 10 ** random.uniform(5.5, 7.5), 10 ** random.uniform(-2, 1)
    sizes = random.dirichlet(np.full(layers, random.choice([0.2, 1.0, 5.0]))) * total
    share = random.dirichlet(np.full(layers, 2.0)) * seconds / 3
    costs = tuple(
        LayerCost(f"{n}", (TensorCost(f"{n}.weight", max(4, int(size))), TensorCost(f"{n}.bias", 256)), own, 2 * own)
        for n, (size, own) in enumerate(zip(sizes, share, strict=True))
    )
    rate = 3 * exchange_bytes(costs) / seconds / 10 ** random.uniform(-1, 1)
    link = SharedLink(rate, 10 ** random.uniform(-5, -2.5), 10 ** random.uniform(-5.5, -3))
    settings = [
        TransferSettings("priority", *(int(total * 10 ** random.uniform(-2.5, 0.2)) for _ in range(2)))
        for _ in range(4)
    ]
    return costs, link, settings


@pytest.mark.slow
def test_it_is_near_the_simulation_over_random_models_links_and_settings() -> None:
    random, errors, losses = np.random.default_rng(7), [], []
    for _ in range(30):
        costs, link, settings = drawn(random)
        simulated = np.array([steady_step_seconds([costs] * 3, link, sending) for sending in settings])
        predicted = predict_steps([costs] * 3, link, settings)
        errors += (abs(predicted / simulated - 1)).tolist()
        losses.append(simulated[np.argmin(predicted)] / simulated.min() - 1)
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.9) < 0.15
    assert np.mean(losses) < 0.03


@given(models().map(lambda costs: tuple(replace(layer, tensors=layer.tensors[:1]) for layer in costs)), links, counts)
def test_of_fifo_and_one_tensor_a_layer_it_is_exact(costs: Costs, link: SharedLink, drives: int) -> None:
    predicted = float(predict_steps([costs] * drives, link, [TransferSettings()])[0])
    assert predicted == pytest.approx(steady_step_seconds([costs] * drives, link, TransferSettings()))


@given(models(), links, st.lists(sendings, min_size=1, max_size=5), counts)
def test_candidates_together_are_predicted_as_each_alone(
    costs: Costs, link: SharedLink, each: list[TransferSettings], drives: int
) -> None:
    alone = [predict_steps([costs] * drives, link, [sending])[0] for sending in each]
    np.testing.assert_allclose(predict_steps([costs] * drives, link, each), alone)


@given(models(), links, sendings, counts)
def test_no_step_is_predicted_to_be_shorter_than_compute(
    costs: Costs, link: SharedLink, sending: TransferSettings, drives: int
) -> None:
    assert predict_steps([costs] * drives, link, [sending])[0] >= compute_seconds(costs) * (1 - 1e-9)
    assert predict_steps([costs], SharedLink(1e18, 0.0), [sending])[0] == pytest.approx(compute_seconds(costs))

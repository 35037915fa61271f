"""The models of bench comm: their layers, and what these cost."""

import pytest
import torch

from csd_emu.perfmodel.overlap.layer_work import compute_seconds, exchange_bytes
from csd_lab.bench.communication import comm_nets
from csd_lab.bench.communication.comm_cases import MODELS, costs_of, spec_of
from firmware_agent.common.models import build_model

LAST_LAYERS_SHARE = {"vgg": 0.85, "alexnet": 0.9}


@pytest.mark.parametrize("name", MODELS)
def test_costs_are_of_the_model_in_forward_order(name: str) -> None:
    net, costs = comm_nets.NETS[name](), costs_of(name, 0.5)
    called: list[str] = []
    for layer, module in net.model.named_modules():
        if layer in net.operations:
            module.register_forward_hook(lambda *_, layer=layer: called.append(layer))
    logits = net.model(torch.randn(2, *comm_nets.INPUT_SHAPE))
    assert logits.shape == (2, comm_nets.CLASSES)
    assert called == [layer.name for layer in costs]
    assert compute_seconds(costs) == pytest.approx(0.5)
    assert exchange_bytes(costs) == sum(4 * each.numel() for each in net.model.parameters())
    tensors = [tensor.name for layer in costs for tensor in layer.tensors]
    assert sorted(tensors) == sorted(name for name, _ in net.model.named_parameters())


@pytest.mark.parametrize("name", MODELS)
def test_all_exchange_about_two_megabytes(name: str) -> None:
    assert 2.0e6 < exchange_bytes(costs_of(name, 1.0)) < 2.4e6


@pytest.mark.parametrize(("name", "share"), LAST_LAYERS_SHARE.items())
def test_the_last_layers_have_most_bytes_and_least_compute(name: str, share: float) -> None:
    costs = costs_of(name, 1.0)
    assert exchange_bytes(costs[-3:]) > share * exchange_bytes(costs)
    assert compute_seconds(costs[-3:]) < 0.1


@pytest.mark.parametrize("name", MODELS)
def test_drives_build_the_same_model_from_its_text(name: str) -> None:
    torch.manual_seed(3)
    here = comm_nets.NETS[name]().model
    torch.manual_seed(3)
    there = build_model(spec_of(name, 0.01)).train()
    images = torch.randn(1, *comm_nets.INPUT_SHAPE)
    assert torch.equal(here(images), there(images))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_do_not_vanish(name: str) -> None:
    """Else 50 steps would show nothing of two schedules that differ."""
    torch.manual_seed(0)
    net = comm_nets.NETS[name]().model
    torch.nn.functional.cross_entropy(net(torch.rand(4, *comm_nets.INPUT_SHAPE)), torch.arange(4)).backward()  # type: ignore[no-untyped-call]
    assert all(float(parameter.grad.abs().max()) > 1e-9 for parameter in net.parameters() if parameter.grad is not None)
    assert all(parameter.grad is not None for parameter in net.parameters())

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from csd_emu.perfmodel.overlap.layer_work import compute_seconds, exchange_bytes, share_out
from firmware_agent.common.layer_costs import OPERATIONS_PER_VALUE, LayerWork, trace_layers
from firmware_agent.common.layer_seconds import measure_layers
from firmware_agent.common.models import build_model
from firmware_agent.common.models.zoo import ZOO
from firmware_agent.common.shipped_code import ShippedCode


class Tied(nn.Module):
    """Uses its layers in another order than it lists them, one of them twice, and one not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.unused = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.first = nn.Linear(4, 4)
        self.third = nn.Linear(4, 4)
        self.third.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        values = self.second(torch.relu(self.first(inputs)))
        return self.first(self.third(values)) * self.scale  # type: ignore[no-any-return]


def small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))


def test_layers_come_in_the_order_of_first_use_each_tensor_once() -> None:
    layers = trace_layers(Tied(), torch.ones(2, 4))
    assert [(layer.name, list(layer.tensors)) for layer in layers] == [
        ("first", ["first.weight", "first.bias"]),
        ("second", ["second.weight", "second.bias"]),
        ("third", ["third.bias"]),
        ("", ["scale", "unused.weight", "unused.bias"]),
    ]
    assert sum(sum(layer.tensors.values()) for layer in layers) == 4 * (3 * 16 + 4 * 4 + 4)


def test_products_count_their_operations_and_the_rest_its_values() -> None:
    conv, linear = trace_layers(small(), torch.zeros(2, 3, 6, 6))
    values = 2 * 8 * 36
    assert conv.forward_operations == 2 * values * 27 + OPERATIONS_PER_VALUE * values
    assert linear.forward_operations == 2 * 2 * 288 * 10
    # Nobody needs the gradient of the images.
    assert conv.backward_operations == conv.forward_operations
    assert linear.backward_operations == 2 * linear.forward_operations


def test_a_frozen_beginning_has_no_backward_pass() -> None:
    model = small()
    model[0].requires_grad_(False)
    conv, linear = trace_layers(model, torch.zeros(2, 3, 6, 6))
    assert conv.backward_operations == 0
    assert linear.backward_operations == linear.forward_operations


def test_attention_counts_its_products() -> None:
    """Its fast path would hide them, and uses the output projection without calling that module."""
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    layers = trace_layers(model, torch.zeros(2, 5, 16))
    assert [layer.name for layer in layers] == ["self_attn", "norm1", "linear1", "linear2", "norm2"]
    assert {"self_attn.in_proj_weight", "self_attn.out_proj.weight"} < set(layers[0].tensors)
    tokens, projections, attention = 2 * 5, 16 * (48 + 16), 2 * 5 * 16
    assert 1 < layers[0].forward_operations / (2 * tokens * (projections + attention)) < 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in ZOO if name in ("digits_cnn", "squeezenet", "mobilenet_v2", "resnet50")]
)
def test_of_the_zoo_every_tensor_is_in_one_layer_and_nothing_changes(name: str) -> None:
    model = build_model(ShippedCode(name))
    size = 8 if name == "digits_cnn" else 64
    before = {key: value.clone() for key, value in model.state_dict().items()}
    layers = trace_layers(model, torch.rand(1, 1 if name == "digits_cnn" else 3, size, size))
    found = [tensor for layer in layers for tensor in layer.tensors]
    assert sorted(found) == sorted(before)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(layer.forward_operations > 0 for layer in layers)
    for layer in layers:  # also what only training uses lies in its module's layer
        assert {tensor.rpartition(".")[0] for tensor in layer.tensors} == {layer.name}


def test_measured_seconds_are_those_between_the_layers() -> None:
    model, ticks = small(), itertools.count()
    layers = trace_layers(model, torch.zeros(2, 3, 6, 6))
    measured = measure_layers(model, lambda: model(torch.ones(2, 3, 6, 6)).sum(), lambda: float(next(ticks)), layers)
    # The clock is read at 0 the beginning, 1 the second layer, 2 the end of the forward pass, 3 to 6 each gradient,
    # 7 the end.
    assert [each.forward_seconds for each in measured] == [1.0, 1.0]
    assert sum(each.backward_seconds for each in measured) == 5.0
    assert measured[1].backward_seconds == 2.0
    again = measure_layers(model, lambda: model(torch.ones(2, 3, 6, 6)).sum(), lambda: float(next(ticks)), layers)
    assert again == measured  # no hook was left behind


def test_hooks_are_gone_also_after_a_failure() -> None:
    model = small()
    layers = trace_layers(model, torch.zeros(2, 3, 6, 6))

    def fail() -> torch.Tensor:
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss"):
        measure_layers(model, fail, lambda: 0.0, layers)
    assert not model[0].weight._post_accumulate_grad_hooks


seconds = st.floats(0, 100)
works = st.lists(
    st.builds(
        LayerWork,
        st.just("layer"),
        st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 10**6), max_size=3),
        st.floats(0, 1e9) | st.just(0.0),
        st.floats(0, 1e9) | st.just(0.0),
    ),
    min_size=1,
    max_size=5,
)


@given(works, seconds, seconds, seconds)
def test_shared_out_seconds_and_bytes_add_up(
    layers: list[LayerWork], forward: float, backward: float, encode: float
) -> None:
    costs = share_out(layers, forward, backward, encode)
    assert compute_seconds(costs) == pytest.approx(forward + backward + encode)
    assert exchange_bytes(costs) == sum(sum(layer.tensors.values()) for layer in layers)
    assert exchange_bytes(share_out(layers, forward, backward, exchanged={})) == 0


def test_encoding_goes_by_bytes_behind_the_backward_pass() -> None:
    layers = [LayerWork("a", {"a.w": 30}, 1.0, 1.0), LayerWork("b", {"b.w": 10, "b.m": 10}, 3.0, 1.0)]
    costs = share_out(layers, 4.0, 2.0, 8.0, exchanged={"a.w": 30, "b.w": 10})
    assert [(layer.forward_seconds, layer.backward_seconds, layer.size_bytes) for layer in costs] == [
        (1.0, 1.0 + 6.0, 30),
        (3.0, 1.0 + 2.0, 10),
    ]

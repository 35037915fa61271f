"""A model cut in two computes what the whole one does, forward and backward; what cannot be cut says why."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.first_use import sent_tensors
from firmware_agent.common.layer_costs import trace_layers
from firmware_agent.common.models import build_model
from firmware_agent.common.models.zoo import ZOO
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.split.cutting import Cut, cut_model, list_cuts
from tests.support.examples import examples

MIDDLES: list[Callable[[int], nn.Module]] = [
    lambda width: nn.Tanh(),
    lambda width: nn.Dropout(0.5),
    nn.BatchNorm1d,
    nn.LayerNorm,
]
SIDES = {"digits_cnn": 8, "inception_v3": 75}


class Shortcut(nn.Module):
    """Two tensors cross in its middle; sizes, a parameter of its own, and parts of a tuple are used on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 1.5))
        self.register_buffer("shift", torch.arange(6.0), persistent=False)
        self.first, self.second, self.third = nn.Linear(12, 12), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, images: torch.Tensor, unused: torch.Tensor | None = None) -> torch.Tensor:
        records, _ = images.shape
        left, right = self.first(images).relu().chunk(2, 1)
        right = self.second(right) * self.scale + self.shift
        both = self.norm(left + right).view(records, 2, -1).view(records * 2, -1).view(images.size(0), 6)
        if unused is not None:
            both = both + unused
        return self.third(both + left)  # type: ignore[no-any-return]


class Joined(nn.Module):
    """Uses one layer's weight at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.middle = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.middle(self.inside(images)), self.inside.weight)


class Branching(nn.Module):
    """What it computes depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = self.first(images)
        return self.second(values) if values.sum() > -1e9 else values  # type: ignore[no-any-return]


class Returning(nn.Module):
    """Comes back to its images late."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(images)) + images  # type: ignore[no-any-return]


class Flattening(nn.Module):
    """Has its records in another shape when it comes back to them, or joined to what is computed of them."""

    def __init__(self, joins: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(8, 4)
        self.joins = joins

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = images.flatten(1)
        both = torch.cat([self.first(flat), flat], 1)
        return self.second(both if self.joins else torch.cat([both[:, :4], flat], 1))  # type: ignore[no-any-return]


class Scaling(nn.Module):
    """Begins with what shifts and scales: tensors that are not trained, or weights of batch normalisation that are."""

    def __init__(self, trained: bool = False) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((4,), 0.5))
        self.norm = nn.BatchNorm1d(4) if trained else nn.Identity()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.norm(images - self.mean)))  # type: ignore[no-any-return]


class Eager(nn.Module):
    """Does something while it is traced that its graph does not have."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.draws = draws

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        factor = torch.rand(1) if self.draws else self.count.add_(1)
        return self.second(self.first(images) * factor)  # type: ignore[no-any-return]


class Summing(nn.Module):
    """Hands on one value for all records."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(images).sum(0, keepdim=True)).expand(images.size(0), 4)  # type: ignore[no-any-return]


class Overwriting(nn.Module):
    """Changes in place what another value that crosses looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = self.first(images)
        seen = values.view(-1, 2, 2)
        values.mul_(self.second(values.detach()))
        return seen.flatten(1)  # type: ignore[no-any-return]


def build(name: str, **arguments: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    model = build_model(ShippedCode(name, arguments={"num_classes": 10} | arguments)).double()
    side = SIDES.get(name, 64 if name in ("alexnet", "squeezenet") else 32)
    return model, torch.rand(3, ZOO[name].input_shape[0], side, side, dtype=torch.float64)


def gradients(model: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor) -> list[object]:
    """Return outputs, gradients and buffers of one training step."""
    torch.manual_seed(5)
    model.zero_grad()
    outputs = forward(images)
    functional.cross_entropy(outputs, torch.arange(len(images)) % outputs.shape[1]).backward()
    left = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return [outputs.detach(), left, {name: each.clone() for name, each in model.named_buffers()}]


def run_apart(cut: Cut, images: torch.Tensor, seen: list[torch.Size]) -> torch.Tensor:
    """Run front and tail with nothing between them but values, whose shapes are noted, and their gradients."""
    there = cut.front(images)
    seen += [value.shape for value in there]
    here = [value.detach().requires_grad_(value.requires_grad) for value in there]
    outputs = cut.tail(*(value.clone() for value in here))

    class Joint(torch.autograd.Function):
        @staticmethod
        def forward(context, *values):  # type: ignore[no-untyped-def]
            return outputs.detach()

        @staticmethod
        def backward(context, gradient):  # type: ignore[no-untyped-def]
            outputs.backward(gradient)
            return tuple(value.grad for value in here)

    return Joint.apply(*there)  # type: ignore[no-any-return, no-untyped-call]


def assert_same(name: str, model: nn.Module, images: torch.Tensor, layer: str) -> None:
    other = copy.deepcopy(model)
    cut = cut_model(other, images, layer)
    parts = {**sent_tensors(cut.front), **sent_tensors(cut.tail)}
    assert all(parts[key] is tensor for key, tensor in sent_tensors(other).items()), name
    assert not set(sent_tensors(cut.front)) & set(sent_tensors(cut.tail))
    seen: list[torch.Size] = []

    def forward(images: torch.Tensor) -> torch.Tensor:
        return run_apart(cut, images, seen)

    got = gradients(other, forward, images)
    torch.testing.assert_close(got, gradients(model, model, images), rtol=1e-10, atol=1e-10)
    assert [tuple(shape[1:]) for shape in seen] == [each.shape for each in cut.point.crossing]
    assert sum(8 * shape.numel() for shape in seen) == len(images) * cut.point.record_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in ("inception_v3", "vgg16") else []) for name in ZOO]
)
def test_the_zoo_cut_anywhere_computes_what_it_does_whole(name: str) -> None:
    # The same graph with a gigabyte less in its linear layers.
    model, images = build(name, **({"hidden": 32} if name in ("vgg16", "alexnet") else {}))
    points = list_cuts(model, images)
    assert [point.layer for point in points] == [layer.name for layer in trace_layers(model, images)[1:]]
    assert not [point for point in points if point.reason]
    for index in sorted({len(points) // 3, len(points) - 1}):
        assert_same(name, copy.deepcopy(model), images, points[index].layer)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=examples(20), deadline=None)
def test_random_stacks_cut_anywhere_compute_what_they_do_whole(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 99)))
    width = data.draw(st.integers(2, 5))
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(data.draw(st.integers(2, 4))):
        layers += [nn.Linear(width, width), *([nn.ReLU(inplace=True)] if data.draw(st.booleans()) else [])]
        for make in data.draw(st.lists(st.sampled_from(MIDDLES), max_size=3)):
            layers.append(make(width))
    model = nn.Sequential(*layers).double()
    images = torch.rand(data.draw(st.integers(2, 5)), width, dtype=torch.float64)
    points = list_cuts(model, images)
    assert not [point for point in points if point.reason]
    assert_same("stack", model, images, data.draw(st.sampled_from(points)).layer)


@pytest.mark.slow
def test_several_tensors_cross_where_a_shortcut_goes_round_and_sizes_are_taken_anew() -> None:
    torch.manual_seed(1)
    model, images = Shortcut().double(), torch.rand(4, 12, dtype=torch.float64)
    points = list_cuts(model, images)
    assert [(point.layer, [each.shape for each in point.crossing]) for point in points] == [
        ("second", [(6,), (6,)]),
        ("", [(6,), (6,)]),
        ("norm", [(6,), (6,)]),
        ("third", [(6,)]),
    ][: len(points)]
    for point in points:
        assert_same("shortcut", copy.deepcopy(model), images, point.layer)
    assert set(cut_model(model, images, "second").tail.state_dict()) < set(model.state_dict())


def test_the_tail_takes_any_number_of_records() -> None:
    model, images = Shortcut().eval(), torch.rand(7, 12)
    cut = cut_model(model, images[:1], "second")
    torch.testing.assert_close(cut.tail(*cut.front(images)), model(images))


@pytest.mark.slow
def test_a_cut_takes_no_memory_of_its_own_and_leaves_no_trace() -> None:
    model, images = build("resnet50")
    before = copy.deepcopy(model.state_dict())
    state = torch.random.get_rng_state()
    list_cuts(model, images)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(module.training for module in model.modules())
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.slow
def test_a_model_without_memory_can_be_cut_alike() -> None:
    """A drive that has no room for the whole model builds it so."""
    model, images = build("nasnet_mobile")
    with torch.device("meta"):
        empty = build_model(ShippedCode("nasnet_mobile", arguments={"num_classes": 10})).double()
    assert list_cuts(empty, images.to("meta")) == list_cuts(model, images)


@pytest.mark.parametrize(
    ("model", "layer", "reason"),
    [
        (Joined(), "middle", "the tensor inside.weight is used on both sides"),
        (Branching(), "second", "torch.fx cannot follow its forward pass"),
        (Returning(), "second", "the records themselves are used from there on"),
        (Flattening(), "second", "still shows the records, and no record leaves its drive"),
        (Flattening(joins=True), "second", "still shows the records"),
        (Scaling(), "first", "still shows the records"),
        (Scaling(trained=True), "norm", "still shows the records"),
        (Scaling(trained=True), "first", "still shows the records"),
        (Eager(draws=True), "second", "draws random numbers without a tensor"),
        (Eager(draws=False), "second", "changes a buffer without a tensor"),
        (Summing(), "second", "not a value for each record"),
        (Overwriting(), "second", "changed in place"),
    ],
)
def test_what_cannot_be_cut_says_why(model: nn.Module, layer: str, reason: str) -> None:
    points = {point.layer: point for point in list_cuts(model, torch.ones(2, 4))}
    assert reason in points[layer].reason
    assert points[layer].crossing == ()
    with pytest.raises(ConfigurationError, match=f"cannot be cut before '{layer}'.*{reason}"):
        cut_model(model, torch.ones(2, 4), layer)


def test_behind_a_weight_that_mixes_what_crosses_is_no_record() -> None:
    for model in (Scaling(), Scaling(trained=True)):
        points = {point.layer: point for point in list_cuts(model, torch.ones(2, 4))}
        assert points["second"].reason == ""
        assert_same("scaling", model.double(), torch.rand(3, 4, dtype=torch.float64), "second")


def test_a_layer_within_one_call_cannot_begin_the_tail() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.TransformerEncoderLayer(16, 4, 32, batch_first=True))
    points = {point.layer: point.reason for point in list_cuts(model, torch.ones(2, 5, 16))}
    assert points["1.self_attn"] == ""
    assert "it begins within 1, which torch.fx takes as one call" in points["1.norm1"]


def test_an_unknown_layer_is_refused_and_the_nearest_are_named() -> None:
    model, images = build("digits_cnn")
    with pytest.raises(ConfigurationError, match=r"has no layer '6.weight'; nearest: '6'"):
        cut_model(model, images, "6.weight")
    with pytest.raises(ConfigurationError, match=r"none leaves its drive; cut at a later layer, such as '2'"):
        cut_model(model, images, "0")

import pytest
import torch
from torch import nn

from firmware_agent.common.models import ZOO, build_model
from firmware_agent.common.models.zoo.common_layers import conv_norm
from firmware_agent.common.models.zoo.nasnet_mobile import _Halve
from firmware_agent.common.shipped_code import ShippedCode

# Trainable parameters at 1000 classes, as published for each architecture.
PUBLISHED = {
    "mobilenet_v2": 3_504_872,
    "squeezenet": 1_235_496,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "alexnet": 61_100_840,
    "inception_v3": 23_834_568,
    "nasnet_mobile": 5_289_978,
}
DROPOUT = {
    "digits_cnn": [],
    "mobilenet_v2": [0.2],
    "squeezenet": [0.5],
    "resnet50": [],
    "vgg16": [0.5, 0.5],
    "alexnet": [0.5, 0.5],
    "inception_v3": [0.5],
    "nasnet_mobile": [0.5],
}
SMALLEST = {"alexnet": 64, "inception_v3": 75, "digits_cnn": 8}


def on_meta(name: str, **arguments: int) -> nn.Module:
    """The model without its weights: hundreds of megabytes would be drawn for nothing."""
    with torch.device("meta"):
        return build_model(ShippedCode(name, None, arguments))


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_zoo_holds_what_is_published_here_and_the_quickstart() -> None:
    assert set(ZOO) == set(PUBLISHED) | {"digits_cnn"} == set(DROPOUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_number(name: str) -> None:
    assert parameters(on_meta(name)) == PUBLISHED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_images_of_the_natural_shape_give_logits(name: str) -> None:
    entry = ZOO[name]
    model = on_meta(name)
    assert model(torch.empty(2, *entry.input_shape, device="meta")).shape == (2, entry.classes)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("extra", [0, 33])
def test_small_images_work_down_to_the_size_that_the_docstring_names(name: str, extra: int) -> None:
    size = SMALLEST.get(name, 32)
    images = torch.empty(2, 3, size + extra, size + extra, device="meta")
    assert on_meta(name)(images).shape == (2, ZOO[name].classes)
    assert f"from {size}x{size} works" in (ZOO[name].builder.__doc__ or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("classes", [2, 101])
def test_the_number_of_classes_changes_the_last_layer_alone(name: str, classes: int) -> None:
    model, usual = on_meta(name, num_classes=classes), on_meta(name)
    changed = [
        (key, a.shape, b.shape)
        for (key, a), b in zip(model.state_dict().items(), usual.state_dict().values(), strict=True)
        if a.shape != b.shape
    ]
    assert [shape[0] for _, shape, _ in changed] == [classes, classes]  # weight and bias
    assert model(torch.empty(2, *ZOO[name].input_shape, device="meta")).shape == (2, classes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_dropout_is_as_published(name: str) -> None:
    assert [module.p for module in on_meta(name).modules() if isinstance(module, nn.Dropout)] == DROPOUT[name]


@pytest.mark.parametrize("name", ["digits_cnn", "mobilenet_v2", "squeezenet"])
def test_a_step_reaches_every_parameter_with_finite_numbers(name: str) -> None:
    """On real weights, at the smallest size; the large models are built of the same parts."""
    torch.manual_seed(0)
    entry, size = ZOO[name], SMALLEST.get(name, 32)
    model = build_model(ShippedCode(name, None, {"num_classes": 4})).train()
    images = torch.rand(4, entry.input_shape[0], size, size)
    loss = nn.functional.cross_entropy(model(images), torch.arange(4))
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "inception_v3", "vgg16", "alexnet", "nasnet_mobile"])
def test_in_the_large_models_too_every_parameter_gets_a_gradient(name: str) -> None:
    model = on_meta(name).train()
    size = SMALLEST.get(name, 32)
    model(torch.empty(2, 3, size, size, device="meta")).sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("kernel", [1, 3, 5, (1, 7), (7, 1)])
def test_without_a_padding_a_convolution_keeps_the_size(kernel: int | tuple[int, int]) -> None:
    assert conv_norm(3, 4, kernel)(torch.zeros(2, 3, 9, 8)).shape == (2, 4, 9, 8)


@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_halving_sees_every_pixel_that_two_shifted_grids_can_see(size: int) -> None:
    halve = _Halve(2, 6).eval()
    images = torch.rand(1, 2, size, size, requires_grad=True)
    out = halve(images)
    assert out.shape == (1, 6, -(-size // 2), -(-size // 2))
    out.sum().backward()
    seen = images.grad[0, 0] != 0 if images.grad is not None else torch.zeros(size, size)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    assert torch.equal(seen, (rows % 2 == 0) & (columns % 2 == 0) | (rows % 2 == 1) & (columns % 2 == 1))

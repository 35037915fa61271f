"""Four models with the shape of well-known ones, small enough for two cores; their text also travels to the drives.

Every layer has one weight. Channels and widths are the originals' divided by one number, so each layer's share of the
bytes is what it is there; biases and normalisations, below 0.5 % of the bytes, are left out. Images are tiny, and
maps do not shrink, so that the real arithmetic takes next to no time: how long a layer takes is said, by the operations
that the layer has at the original's size of images. Layers compute their real numbers, which must take less; what is
left of their time they sleep. So several drives on few cores do not slow each other down, and compute is the same in
every run, while what they send is sent in earnest.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

INPUT_SHAPE, CLASSES = (3, 7, 7), 62
# A layer that starts so soon after the one before is held to start when that one's time was over: what interpreter,
# timers and a busy machine cost does not add up. Later than that it is another pass.
_LATE_SECONDS = 0.02
# A layer that did not get its parameters sooner has waited for them, which is no delay of the machine's.
_WAIT_SECONDS = 0.0005


class Net(NamedTuple):
    """A model and what its layers cost.

    Attributes:
        model: with untrained weights.
        operations: layer -> multiplications of a forward pass at the original's size of images, in forward order.
    """

    model: nn.Module
    operations: dict[str, float]


def build(name: str, compute_seconds: float = 0.0) -> nn.Module:
    """Return a model whose layers take `compute_seconds` in all, forward and backward; unpaced without."""
    net = NETS[name]()
    if not compute_seconds:
        return net.model
    return pace(net.model, layer_seconds(net.operations, compute_seconds))


def layer_seconds(operations: dict[str, float], compute_seconds: float) -> dict[str, PacedLayerSeconds]:
    """Share out the seconds of a step by operations: a backward pass has twice a forward pass's.

    Of the first layer it has as many: nobody needs the gradient of the images.
    """
    first = next(iter(operations))
    whole = sum((2 if name == first else 3) * count for name, count in operations.items())
    each = compute_seconds / whole
    return {
        name: PacedLayerSeconds(count * each, (1 if name == first else 2) * count * each)
        for name, count in operations.items()
    }


def vgg_like() -> Net:
    """Return VGG-16 (Simonyan, Zisserman 2015, table 1, D), widths / 16: 89 % of the bytes in the last three layers."""
    widths = (4, 4, 8, 8, 16, 16, 16, 32, 32, 32, 32, 32, 32)
    sides = (224, 224, 112, 112, 56, 56, 56, 28, 28, 28, 14, 14, 14)
    chain = _Chain()
    for width, side in zip(widths, sides, strict=True):
        chain.convolve(width, 3, side)
    return chain.classify((256, 256, CLASSES), 7)


def alexnet_like() -> Net:
    """Return AlexNet (Krizhevsky 2014), widths * 3 / 32: 96 % of the bytes in the last three layers."""
    chain = _Chain()
    for width, kernel, side in ((6, 11, 55), (18, 5, 27), (36, 3, 13), (24, 3, 13), (24, 3, 13)):
        chain.convolve(width, kernel, side)
    return chain.classify((384, 384, CLASSES), 6)


def transformer_like() -> Net:
    """Return a vision transformer (Dosovitskiy et al. 2021, ViT-B/16), 6 blocks of width 88: bytes spread evenly."""
    blocks, width, tokens = 6, 88, 197
    model = _Transformer(blocks, width)
    operations = {"embed": 3.0 * 16 * 16 * width * tokens}
    for block in range(blocks):
        attention = 2.0 * tokens * tokens * width
        operations[f"blocks.{block}.qkv"] = 3.0 * width * width * tokens + attention
        operations[f"blocks.{block}.out"] = 1.0 * width * width * tokens
        operations[f"blocks.{block}.grow"] = 4.0 * width * width * tokens
        operations[f"blocks.{block}.shrink"] = 4.0 * width * width * tokens
    return Net(model, operations | {"head": float(width * CLASSES)})


def resnet_like() -> Net:
    """Return ResNet-18 (He et al. 2016, table 1), widths * 7 / 32: 72 % of the bytes in the last stage."""
    widths, sides = (14, 28, 56, 112), (56, 28, 14, 7)
    model = _Residual(widths)
    operations = {"stem": 3.0 * 49 * widths[0] * 112 * 112}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d) and name != "stem":
            operations[name] = float(layer.weight.numel() * sides[int(name.split(".")[1]) // 2] ** 2)
    return Net(model, operations | {"head": float(widths[-1] * CLASSES)})


NETS = {"vgg": vgg_like, "alexnet": alexnet_like, "transformer": transformer_like, "resnet": resnet_like}


class _Chain:
    """Layers one after the other, and their operations."""

    def __init__(self) -> None:
        self._layers: OrderedDict[str, nn.Module] = OrderedDict()
        self._operations: dict[str, float] = {}
        self._width = INPUT_SHAPE[0]

    def convolve(self, width: int, kernel: int, side: int) -> None:
        """Add a convolution, which has `side` x `side` outputs at the original's size."""
        name = f"conv{len(self._operations) + 1}"
        layer = nn.Conv2d(self._width, width, kernel, padding=kernel // 2, bias=False)
        self._add(name, layer, layer.weight.numel() * side * side)
        self._width = width

    def classify(self, widths: tuple[int, ...], side: int) -> Net:
        """Add the linear layers behind maps of this side, and return the model."""
        self._layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(side), nn.Flatten())
        self._width *= side * side
        for number, width in enumerate(widths, 1):
            layer = nn.Linear(self._width, width, bias=False)
            self._add(f"fc{number}", layer, layer.weight.numel(), last=number == len(widths))
            self._width = width
        return Net(nn.Sequential(self._layers), self._operations)

    def _add(self, name: str, layer: nn.Conv2d | nn.Linear, operations: int, last: bool = False) -> None:
        nn.init.kaiming_normal_(layer.weight)
        self._layers[name], self._operations[name] = layer, float(operations)
        if not last:
            self._layers[f"{name}_relu"] = nn.ReLU()


class _Residual(nn.Module):
    """Two residual blocks per stage."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(INPUT_SHAPE[0], widths[0], 7, padding=3, bias=False)
        inputs = [widths[0], *(width for width in widths for _ in range(2))]
        self.blocks = nn.Sequential(*(_Block(a, b) for a, b in pairwise(inputs)))
        self.head = nn.Linear(widths[-1], CLASSES, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.blocks(torch.relu(self.stem(images)))
        logits: torch.Tensor = self.head(maps.mean((2, 3)))
        return logits


class _Block(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width_in, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(width_in, width, 1, bias=False) if width_in != width else nn.Identity()

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        change = self.second(torch.relu(self.first(maps)))
        return torch.relu(self.shortcut(maps) + 0.5 * change)


class _Transformer(nn.Module):
    """Images are sentences here: their rows are the words."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        channels, _, columns = INPUT_SHAPE
        self.embed = nn.Linear(channels * columns, width, bias=False)
        self.blocks = nn.Sequential(*(_Attending(width) for _ in range(blocks)))
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        words = self.embed(images.transpose(1, 2).flatten(2))
        logits: torch.Tensor = self.head(self.blocks(words).mean(1))
        return logits


class _Attending(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.grow, self.shrink = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        queries, keys, values = self.qkv(self.norm(words)).chunk(3, -1)
        seen = torch.softmax(queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[-1]), -1)
        words = words + self.out(seen @ values)
        changed: torch.Tensor = words + self.shrink(torch.relu(self.grow(self.norm(words))))
        return changed


class PacedLayerSeconds(NamedTuple):
    """How long a layer takes, forward and backward."""

    forward: float
    backward: float


class Pacer:
    """The time of one model's passes: layer follows layer."""

    def __init__(self, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        """Begin with nothing due; `sleep` waits seconds of the clock `now`."""
        self._now, self._sleep, self._due = now, sleep, now()

    def now(self) -> float:
        """Return the clock."""
        return self._now()

    def start(self, called: float | None = None) -> float:
        """Return when the layer that now begins is held to have begun; `called` is when it asked for its parameters."""
        now = self._now()
        waited = called is not None and now - called > _WAIT_SECONDS
        return now if waited or now - self._due > _LATE_SECONDS else self._due

    def wait_until(self, moment: float) -> None:
        """Sleep until then; at once if it is over."""
        self._due = moment
        if (left := moment - self._now()) > 0:
            self._sleep(left)


def pace(model: nn.Module, seconds: Mapping[str, PacedLayerSeconds], pacer: Pacer | None = None) -> nn.Module:
    """Have layers of a model take their seconds, in training mode alone; return the model.

    A layer's forward time begins when it has got its parameters (see `firmware_agent.common.first_use`). Its backward
    time begins when the gradient of its output is there; the gradients of its parameters, all at once, and that of its
    input are there when it is over.

    Args:
        model: is changed; its layers must each give one tensor.
        seconds: name of a layer -> its seconds.
        pacer: for tests; by default a new one on the monotonic clock.
    """
    pacer = pacer or Pacer()
    layers = dict(model.named_modules())
    for name, each in seconds.items():
        _Paced(layers[name], each, pacer)
    return model


class _Paced:
    """One layer that takes its seconds."""

    def __init__(self, layer: nn.Module, seconds: PacedLayerSeconds, pacer: Pacer) -> None:
        self._layer, self._seconds, self._pacer = layer, seconds, pacer
        self._compute = layer.forward
        self._due = 0.0
        layer.forward = self._forward
        self._own = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        for parameter in self._own:
            # Runs before the gradient is accumulated, and whoever waits for that is told.
            parameter.register_hook(self._end_backward)  # type: ignore[no-untyped-call]

    def _forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if not self._layer.training:
            plain: torch.Tensor = self._compute(*inputs)
            return plain
        called = self._pacer.now()
        for parameter in self._own:
            parameter.detach()  # whoever holds it back until it has come makes us wait here
        start = self._pacer.start(called)
        marked: torch.Tensor = _Mark.apply(  # type: ignore[no-untyped-call]
            self._compute(*inputs), self._begin_backward
        )
        self._pacer.wait_until(start + self._seconds.forward)
        return marked

    def _begin_backward(self) -> None:
        self._due = self._pacer.start() + self._seconds.backward
        if not self._own:
            self._pacer.wait_until(self._due)

    def _end_backward(self, _: torch.Tensor) -> None:
        self._pacer.wait_until(self._due)


class _Mark(torch.autograd.Function):
    """Passes its input on, and says when the gradient comes back."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, tell: Callable[[], None]) -> torch.Tensor:
        context.tell = tell
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.tell()
        return gradients[0], None

"""The built-in models, one file each, by the papers that describe them.

A builder takes the number of classes and returns a module: float32 images (batch, channels, height, width) ->
(batch, classes) logits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_IMAGENET_CLASSES = 1000
_IMAGENET_SHAPE = (3, 224, 224)


@dataclass(frozen=True)
class ZooEntry:
    """One built-in model.

    Attributes:
        name: of the model, its file and its builder.
        input_shape: (channels, height, width) of the images that it was made for.
        classes: how many classes it has if none are asked for.
    """

    name: str
    input_shape: tuple[int, int, int] = _IMAGENET_SHAPE
    classes: int = _IMAGENET_CLASSES

    @property
    def builder(self) -> Callable[..., nn.Module]:
        """What takes `num_classes`; torch is imported here, for a quick start of all that builds no model."""
        builder: Callable[..., nn.Module] = getattr(importlib.import_module(f"{__name__}.{self.name}"), self.name)
        return builder


_ENTRIES = (
    ZooEntry("digits_cnn", (1, 8, 8), 10),
    *map(ZooEntry, ("mobilenet_v2", "squeezenet", "resnet50", "vgg16", "alexnet")),
    ZooEntry("inception_v3", (3, 299, 299)),
    ZooEntry("nasnet_mobile"),
)
ZOO: dict[str, ZooEntry] = {entry.name: entry for entry in _ENTRIES}

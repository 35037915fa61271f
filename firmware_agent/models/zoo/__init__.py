"""The built-in models, one file each, by the papers that describe them.

A builder takes the number of classes and returns a module: float32 images (batch, channels, height, width) ->
(batch, classes) logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from firmware_agent.models.zoo.alexnet import alexnet
from firmware_agent.models.zoo.digits_cnn import digits_cnn
from firmware_agent.models.zoo.inception_v3 import inception_v3
from firmware_agent.models.zoo.mobilenet_v2 import mobilenet_v2
from firmware_agent.models.zoo.nasnet_mobile import nasnet_mobile
from firmware_agent.models.zoo.resnet50 import resnet50
from firmware_agent.models.zoo.squeezenet import squeezenet
from firmware_agent.models.zoo.vgg16 import vgg16

_IMAGENET_CLASSES = 1000
_IMAGENET_SHAPE = (3, 224, 224)


@dataclass(frozen=True)
class ZooEntry:
    """One built-in model.

    Attributes:
        builder: takes `num_classes`.
        input_shape: (channels, height, width) of the images that it was made for.
        classes: how many classes it has if none are asked for.
    """

    builder: Callable[..., nn.Module]
    input_shape: tuple[int, int, int] = _IMAGENET_SHAPE
    classes: int = _IMAGENET_CLASSES


ZOO: dict[str, ZooEntry] = {
    "digits_cnn": ZooEntry(digits_cnn, (1, 8, 8), 10),
    "mobilenet_v2": ZooEntry(mobilenet_v2),
    "squeezenet": ZooEntry(squeezenet),
    "resnet50": ZooEntry(resnet50),
    "vgg16": ZooEntry(vgg16),
    "alexnet": ZooEntry(alexnet),
    "inception_v3": ZooEntry(inception_v3, (3, 299, 299)),
    "nasnet_mobile": ZooEntry(nasnet_mobile),
}

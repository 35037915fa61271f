"""VGG-16 (Simonyan and Zisserman 2015, arXiv:1409.1556, table 1, configuration D)."""

from __future__ import annotations

from torch import nn

from firmware_agent.common.models.zoo.common_layers import init_weights

# Channels and convolutions of each stage; a pooling follows each.
_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_GRID, _DROPOUT = 7, 0.5


def vgg16(num_classes: int = 1000, hidden: int = 4096) -> nn.Module:
    """Return VGG-16: 138 357 544 parameters at 1000 classes and linear layers `hidden` values wide.

    Input (batch, 3, 224, 224); any size from 32x32 works, for the last images are pooled to 7x7.
    """
    channels = 3
    layers: list[nn.Module] = []
    for width, convolutions in _STAGES:
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(_GRID), nn.Flatten()]
    layers += [nn.Linear(channels * _GRID * _GRID, hidden), nn.ReLU(inplace=True), nn.Dropout(_DROPOUT)]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(_DROPOUT)]
    layers.append(nn.Linear(hidden, num_classes))
    return init_weights(nn.Sequential(*layers))

"""AlexNet (Krizhevsky et al. 2012) in the single-column form of Krizhevsky 2014 (arXiv:1404.5997)."""

from __future__ import annotations

from torch import nn

from firmware_agent.common.models.zoo.common_layers import init_weights

_GRID, _DROPOUT = 6, 0.5


def alexnet(num_classes: int = 1000, hidden: int = 4096) -> nn.Module:
    """Return AlexNet: 61 100 840 parameters at 1000 classes and linear layers `hidden` values wide.

    Input (batch, 3, 224, 224); any size from 64x64 works, for the last images are pooled to 6x6.
    """
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.AdaptiveAvgPool2d(_GRID), nn.Flatten()),
        *(nn.Dropout(_DROPOUT), nn.Linear(256 * _GRID * _GRID, hidden), nn.ReLU(inplace=True)),
        *(nn.Dropout(_DROPOUT), nn.Linear(hidden, hidden), nn.ReLU(inplace=True)),
        nn.Linear(hidden, num_classes),
    )
    return init_weights(model)

"""SqueezeNet 1.1 (Iandola et al. 2016, arXiv:1602.07360; version 1.1 is the authors' own revision of it)."""

from __future__ import annotations

import torch
from torch import nn

from firmware_agent.common.models.zoo.common_layers import init_weights

_DROPOUT = 0.5


class _Fire(nn.Module):
    """Squeeze with 1x1 filters, expand with 1x1 and 3x3 filters side by side (section 3.2 of the paper)."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        thin = self.activation(self.squeeze(images))
        return torch.cat([self.activation(self.expand1x1(thin)), self.activation(self.expand3x3(thin))], 1)


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)


def squeezenet(num_classes: int = 1000) -> nn.Module:
    """Return SqueezeNet 1.1: 1 235 496 parameters at 1000 classes.

    Input (batch, 3, 224, 224); any size from 32x32 works.
    """
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, 2), nn.ReLU(inplace=True), _pool()),
        *(_Fire(64, 16, 64), _Fire(128, 16, 64), _pool()),
        *(_Fire(128, 32, 128), _Fire(256, 32, 128), _pool()),
        *(_Fire(256, 48, 192), _Fire(384, 48, 192), _Fire(384, 64, 256), _Fire(512, 64, 256)),
        *(nn.Dropout(_DROPOUT), nn.Conv2d(512, num_classes, 1), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    return init_weights(model)

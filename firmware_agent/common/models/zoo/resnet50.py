"""ResNet-50 (He et al. 2016, arXiv:1512.03385, table 1)."""

from __future__ import annotations

import torch
from torch import nn

from firmware_agent.common.models.zoo.common_layers import conv_norm, init_weights

# Width of the 3x3 filters, blocks, stride of the first.
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
_EXPANSION = 4


class _Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 filters and a shortcut; the stride is in the 3x3 filters, as in most later work."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.body = nn.Sequential(
            conv_norm(inputs, width, 1),
            conv_norm(width, width, 3, stride),
            conv_norm(width, outputs, 1, activation=None),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else conv_norm(inputs, outputs, 1, stride, activation=None)
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.activation(self.body(images) + self.shortcut(images))
        return out


def resnet50(num_classes: int = 1000) -> nn.Module:
    """Return ResNet-50: 25 557 032 parameters at 1000 classes.

    Input (batch, 3, 224, 224); any size from 32x32 works.
    """
    channels = 64
    layers: list[nn.Module] = [conv_norm(3, channels, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for width, blocks, stride in _STAGES:
        for number in range(blocks):
            layers.append(_Bottleneck(channels, width, stride if number == 0 else 1))
            channels = width * _EXPANSION
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return init_weights(nn.Sequential(*layers))

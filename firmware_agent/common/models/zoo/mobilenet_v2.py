"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381)."""

from __future__ import annotations

import torch
from torch import nn

from firmware_agent.common.models.zoo.common_layers import conv_norm, init_weights

# Table 2 of the paper: expansion, channels, repeats, stride of the first.
_BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_STEM, _HEAD, _DROPOUT = 32, 1280, 0.2


class _InvertedResidual(nn.Module):
    """Expand, filter each channel alone, project without an activation (section 3.3 of the paper)."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.shortcut = stride == 1 and inputs == outputs
        expand = [conv_norm(inputs, hidden, 1, activation=nn.ReLU6)] if expansion != 1 else []
        self.body = nn.Sequential(
            *expand,
            conv_norm(hidden, hidden, 3, stride, groups=hidden, activation=nn.ReLU6),
            conv_norm(hidden, outputs, 1, activation=None),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(images)
        return images + out if self.shortcut else out


def mobilenet_v2(num_classes: int = 1000) -> nn.Module:
    """Return MobileNetV2 of width 1.0: 3 504 872 parameters at 1000 classes.

    Input (batch, 3, 224, 224); any size from 32x32 works.
    """
    channels = _STEM
    layers: list[nn.Module] = [conv_norm(3, channels, 3, 2, activation=nn.ReLU6)]
    for expansion, outputs, repeats, stride in _BLOCKS:
        for number in range(repeats):
            layers.append(_InvertedResidual(channels, outputs, expansion, stride if number == 0 else 1))
            channels = outputs
    layers += [
        conv_norm(channels, _HEAD, 1, activation=nn.ReLU6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(_DROPOUT),
        nn.Linear(_HEAD, num_classes),
    ]
    return init_weights(nn.Sequential(*layers))

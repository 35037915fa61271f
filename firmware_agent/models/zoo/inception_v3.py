"""Inception v3 (Szegedy et al. 2016, arXiv:1512.00567), without the auxiliary classifier."""

from __future__ import annotations

import torch
from torch import nn

from firmware_agent.models.zoo.layers import Size, conv_norm, init_weights

_EPS, _DROPOUT, _CHANNELS = 1e-3, 0.5, 2048


class _Branches(nn.Module):
    """Several ways side by side, their channels one after the other."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(images) for branch in self.branches], 1)


def _conv(inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: int | None = None) -> nn.Module:
    return conv_norm(inputs, outputs, kernel, stride, padding, eps=_EPS)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(inputs, outputs, 1))


def _module_5x5(inputs: int, pooled: int) -> nn.Module:
    """Figure 5 of the paper; one 5x5 filter is left as it was."""
    return _Branches(
        _conv(inputs, 64, 1),
        nn.Sequential(_conv(inputs, 48, 1), _conv(48, 64, 5)),
        nn.Sequential(_conv(inputs, 64, 1), _conv(64, 96, 3), _conv(96, 96, 3)),
        _pooled(inputs, pooled),
    )


def _module_7x7(width: int) -> nn.Module:
    """Figure 6 of the paper, n = 7: filters of 1x7 and 7x1."""
    wide, tall = (1, 7), (7, 1)
    return _Branches(
        _conv(768, 192, 1),
        nn.Sequential(_conv(768, width, 1), _conv(width, width, wide), _conv(width, 192, tall)),
        nn.Sequential(
            *(_conv(768, width, 1), _conv(width, width, tall), _conv(width, width, wide)),
            *(_conv(width, width, tall), _conv(width, 192, wide)),
        ),
        _pooled(768, 192),
    )


def _module_split(inputs: int) -> nn.Module:
    """Figure 7 of the paper: the last filters of a branch split into 1x3 and 3x1 side by side."""

    def split(channels: int) -> nn.Module:
        return _Branches(_conv(channels, 384, (1, 3)), _conv(channels, 384, (3, 1)))

    return _Branches(
        _conv(inputs, 320, 1),
        nn.Sequential(_conv(inputs, 384, 1), split(384)),
        nn.Sequential(_conv(inputs, 448, 1), _conv(448, 384, 3), split(384)),
        _pooled(inputs, 192),
    )


def _shrink_35() -> nn.Module:
    """Figure 10 of the paper: convolution and pooling side by side, 35x35 -> 17x17."""
    return _Branches(
        _conv(288, 384, 3, 2, 0),
        nn.Sequential(_conv(288, 64, 1), _conv(64, 96, 3), _conv(96, 96, 3, 2, 0)),
        nn.MaxPool2d(3, 2),
    )


def _shrink_17() -> nn.Module:
    return _Branches(
        nn.Sequential(_conv(768, 192, 1), _conv(192, 320, 3, 2, 0)),
        nn.Sequential(
            *(_conv(768, 192, 1), _conv(192, 192, (1, 7)), _conv(192, 192, (7, 1)), _conv(192, 192, 3, 2, 0)),
        ),
        nn.MaxPool2d(3, 2),
    )


def inception_v3(num_classes: int = 1000) -> nn.Module:
    """Return Inception v3: 23 834 568 parameters at 1000 classes.

    Input (batch, 3, 299, 299); any size from 75x75 works.
    """
    model = nn.Sequential(
        *(_conv(3, 32, 3, 2, 0), _conv(32, 32, 3, 1, 0), _conv(32, 64, 3), nn.MaxPool2d(3, 2)),
        *(_conv(64, 80, 1), _conv(80, 192, 3, 1, 0), nn.MaxPool2d(3, 2)),
        *(_module_5x5(192, 32), _module_5x5(256, 64), _module_5x5(288, 64), _shrink_35()),
        *(_module_7x7(128), _module_7x7(160), _module_7x7(160), _module_7x7(192), _shrink_17()),
        *(_module_split(1280), _module_split(_CHANNELS), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Dropout(_DROPOUT), nn.Linear(_CHANNELS, num_classes)),
    )
    return init_weights(model)

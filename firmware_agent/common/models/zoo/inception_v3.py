"""Inception v3 (Szegedy et al. 2016, arXiv:1512.00567), without the auxiliary classifier."""

from __future__ import annotations

import torch
from torch import nn

from firmware_agent.common.models.zoo.common_layers import conv_norm, init_weights

_EPS, _DROPOUT, _CHANNELS = 1e-3, 0.5, 2048


class _Branches(nn.Module):
    """Several ways side by side, their channels one after the other."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(images) for branch in self.branches], 1)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_norm(inputs, outputs, 1))


def _module_5x5(inputs: int, pooled: int) -> nn.Module:
    """Figure 5 of the paper; one 5x5 filter is left as it was."""
    return _Branches(
        conv_norm(inputs, 64, 1),
        nn.Sequential(conv_norm(inputs, 48, 1), conv_norm(48, 64, 5)),
        nn.Sequential(conv_norm(inputs, 64, 1), conv_norm(64, 96, 3), conv_norm(96, 96, 3)),
        _pooled(inputs, pooled),
    )


def _module_7x7(width: int) -> nn.Module:
    """Figure 6 of the paper, n = 7: filters of 1x7 and 7x1."""
    wide, tall = (1, 7), (7, 1)
    return _Branches(
        conv_norm(768, 192, 1),
        nn.Sequential(conv_norm(768, width, 1), conv_norm(width, width, wide), conv_norm(width, 192, tall)),
        nn.Sequential(
            *(conv_norm(768, width, 1), conv_norm(width, width, tall), conv_norm(width, width, wide)),
            *(conv_norm(width, width, tall), conv_norm(width, 192, wide)),
        ),
        _pooled(768, 192),
    )


def _module_split(inputs: int) -> nn.Module:
    """Figure 7 of the paper: the last filters of a branch split into 1x3 and 3x1 side by side."""

    def split(channels: int) -> nn.Module:
        return _Branches(conv_norm(channels, 384, (1, 3)), conv_norm(channels, 384, (3, 1)))

    return _Branches(
        conv_norm(inputs, 320, 1),
        nn.Sequential(conv_norm(inputs, 384, 1), split(384)),
        nn.Sequential(conv_norm(inputs, 448, 1), conv_norm(448, 384, 3), split(384)),
        _pooled(inputs, 192),
    )


def _shrink_35() -> nn.Module:
    """Figure 10 of the paper: convolution and pooling side by side, 35x35 -> 17x17."""
    return _Branches(
        conv_norm(288, 384, 3, 2, 0),
        nn.Sequential(conv_norm(288, 64, 1), conv_norm(64, 96, 3), conv_norm(96, 96, 3, 2, 0)),
        nn.MaxPool2d(3, 2),
    )


def _shrink_17() -> nn.Module:
    return _Branches(
        nn.Sequential(conv_norm(768, 192, 1), conv_norm(192, 320, 3, 2, 0)),
        nn.Sequential(
            *(
                conv_norm(768, 192, 1),
                conv_norm(192, 192, (1, 7)),
                conv_norm(192, 192, (7, 1)),
                conv_norm(192, 192, 3, 2, 0),
            ),
        ),
        nn.MaxPool2d(3, 2),
    )


def inception_v3(num_classes: int = 1000) -> nn.Module:
    """Return Inception v3: 23 834 568 parameters at 1000 classes.

    Input (batch, 3, 299, 299); any size from 75x75 works.
    """
    model = nn.Sequential(
        *(conv_norm(3, 32, 3, 2, 0), conv_norm(32, 32, 3, 1, 0), conv_norm(32, 64, 3), nn.MaxPool2d(3, 2)),
        *(conv_norm(64, 80, 1), conv_norm(80, 192, 3, 1, 0), nn.MaxPool2d(3, 2)),
        *(_module_5x5(192, 32), _module_5x5(256, 64), _module_5x5(288, 64), _shrink_35()),
        *(_module_7x7(128), _module_7x7(160), _module_7x7(160), _module_7x7(192), _shrink_17()),
        *(_module_split(1280), _module_split(_CHANNELS), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Dropout(_DROPOUT), nn.Linear(_CHANNELS, num_classes)),
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = _EPS
    return init_weights(model)

"""NASNet-A Mobile, 4 @ 1056 (Zoph et al. 2018, arXiv:1707.07012, figures 2 and 4 and appendix A)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from firmware_agent.common.models.zoo.common_layers import init_weights

_REPEATS, _FILTERS, _STEM, _DROPOUT, _EPS = 4, 44, 32, 0.5, 1e-3


def _separable(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    """ReLU, depthwise and pointwise convolution, normalisation; applied twice, the stride in the first."""

    def once(inputs: int, stride: int) -> list[nn.Module]:
        return [
            nn.ReLU(),
            nn.Conv2d(inputs, inputs, kernel, stride, kernel // 2, groups=inputs, bias=False),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs, eps=_EPS),
        ]

    return nn.Sequential(*once(inputs, stride), *once(outputs, 1))


def _project(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs, eps=_EPS))


def _average(stride: int = 1) -> nn.Module:
    return nn.AvgPool2d(3, stride, 1, count_include_pad=False)


class _Halve(nn.Module):
    """Bring the cell before last to half its size without losing every other pixel: two shifted grids side by side."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.odd = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs // 2 * 2, eps=_EPS)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = functional.relu(images)
        shifted = functional.pad(images, (0, 1, 0, 1))[:, :, 1:, 1:]
        halves = [self.even(images[:, :, ::2, ::2]), self.odd(shifted[:, :, ::2, ::2])]
        out: torch.Tensor = self.norm(torch.cat(halves, 1))
        return out


def _adjust(inputs: int, outputs: int, halve: bool) -> nn.Module:
    if halve:
        return _Halve(inputs, outputs)
    return nn.Identity() if inputs == outputs else _project(inputs, outputs)


class _NormalCell(nn.Module):
    """Left half of figure 4: keeps the size; `here` is the last cell's output, `before` that of the one before it."""

    def __init__(self, here: int, before: int, filters: int, halve: bool) -> None:
        super().__init__()
        self.before, self.here = _adjust(before, filters, halve), _project(here, filters)
        self.here5, self.before3 = _separable(filters, filters, 5), _separable(filters, filters, 3)
        self.before5, self.before3b = _separable(filters, filters, 5), _separable(filters, filters, 3)
        self.here3, self.average = _separable(filters, filters, 3), _average()
        self.channels = 6 * filters

    def forward(self, here: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        before, here = self.before(before), self.here(here)
        pooled = self.average(before)
        return torch.cat(
            [
                before,
                self.here5(here) + self.before3(before),
                self.before5(before) + self.before3b(before),
                self.average(here) + before,
                pooled + pooled,
                self.here3(here) + here,
            ],
            1,
        )


class _ReductionCell(nn.Module):
    """Right half of figure 4: halves the size."""

    def __init__(self, here: int, before: int, filters: int, halve: bool) -> None:
        super().__init__()
        # The first cell takes the stem's output twice, and as it is.
        stem = before == here == _STEM
        self.before = nn.Identity() if stem else _adjust(before, filters, halve)
        self.here = _project(here, filters)
        before = _STEM if stem else filters
        self.here5, self.before7 = _separable(filters, filters, 5, 2), _separable(before, filters, 7, 2)
        self.before7b, self.before5 = _separable(before, filters, 7, 2), _separable(before, filters, 5, 2)
        self.inner3, self.inner_average = _separable(filters, filters, 3), _average()
        self.largest, self.average = nn.MaxPool2d(3, 2, 1), _average(2)
        self.channels = 4 * filters

    def forward(self, here: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        before, here = self.before(before), self.here(here)
        largest = self.largest(here)
        first = self.here5(here) + self.before7(before)
        second = largest + self.before7b(before)
        third = self.average(here) + self.before5(before)
        return torch.cat([second, third, self.inner_average(first) + second, self.inner3(first) + largest], 1)


class _NasNet(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, _STEM, 3, 2, bias=False), nn.BatchNorm2d(_STEM, eps=_EPS))
        self.cells = nn.ModuleList()
        self._here = self._before = _STEM
        self._halve = False
        self._add(_ReductionCell, _FILTERS // 4)
        self._add(_ReductionCell, _FILTERS // 2)
        for scale in (1, 2, 4):
            if scale > 1:
                self._add(_ReductionCell, _FILTERS * scale)
            for _ in range(_REPEATS):
                self._add(_NormalCell, _FILTERS * scale)
        self.classifier = nn.Sequential(
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(_DROPOUT), nn.Linear(self._here, num_classes)
        )

    def _add(self, kind: type[_NormalCell | _ReductionCell], filters: int) -> None:
        """Add a cell; after one that halved the size, what came before it has to be halved too."""
        cell = kind(self._here, self._before, filters, self._halve)
        self.cells.append(cell)
        self._here, self._before, self._halve = cell.channels, self._here, kind is _ReductionCell

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        here = before = self.stem(images)
        for cell in self.cells:
            here, before = cell(here, before), here
        out: torch.Tensor = self.classifier(here)
        return out


def nasnet_mobile(num_classes: int = 1000) -> nn.Module:
    """Return NASNet-A Mobile: 5 289 978 parameters at 1000 classes.

    Input (batch, 3, 224, 224); any size from 32x32 works. Drop-path and the auxiliary classifier, aids to training for
    hundreds of epochs, are left out.
    """
    return init_weights(_NasNet(num_classes))

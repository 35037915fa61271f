"""The quickstart's model."""

from __future__ import annotations

from torch import nn


def digits_cnn(num_classes: int = 10) -> nn.Module:
    """Return a small CNN for 8x8 grey images, (batch, 1, 8, 8) float32 -> (batch, num_classes) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )

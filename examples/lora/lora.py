"""LoRA (Hu et al., ICLR 2022): a frozen layer with a small trained one beside it, of which alone updates cross."""

import torch
from torch import nn


class Adapted(nn.Module):
    """A linear layer plus the product of two thin matrices."""

    def __init__(self, inputs, outputs, rank):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x):  # noqa: D102
        return self.base(x) + x @ self.down.T @ self.up.T


def net(rank=4):
    """Return a classifier of digits with two adapted layers."""
    return nn.Sequential(nn.Flatten(), Adapted(64, 128, rank), nn.ReLU(), Adapted(128, 10, rank))


def train(model, csd):
    """Train, and return what is trained: the adapters."""
    csd.fit()
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}

"""The drive's optimiser: stochastic gradient descent with momentum, held near its start by a proximal term if asked."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.optim.sgd import sgd


class LocalSgd:
    """`torch.optim.SGD` without its class, by torch's own functional form, so the numbers are the same.

    The class imports torch's compiler at its first step: as much code as all the rest of torch, tens of wall seconds in
    an emulated drive, and a folder in /tmp, for something that a drive never uses.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], learning_rate: float, momentum: float, proximal: float = 0.0
    ) -> None:
        """Optimise `parameters`; momentum starts at zero, as in a fresh `torch.optim.SGD`.

        With `proximal` = mu > 0 the gradient of mu/2 ||w - w_0||^2 is added, w_0 being the parameters as they are now.
        """
        self._parameters = [p for p in parameters if p.requires_grad]
        self._proximal = proximal
        self._anchors = [p.detach().clone() for p in self._parameters] if proximal else []
        self._momentum_buffers: list[torch.Tensor | None] = [None] * len(self._parameters)
        self._learning_rate, self._momentum = learning_rate, momentum

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        active = [n for n, p in enumerate(self._parameters) if p.grad is not None]
        parameters: list[torch.Tensor] = [self._parameters[n] for n in active]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self._proximal:
            anchors = [self._anchors[n] for n in active]
            gradients = [g + self._proximal * (p - a) for g, p, a in zip(gradients, parameters, anchors, strict=True)]
        buffers = [self._momentum_buffers[n] for n in active]
        sgd(
            *(parameters, gradients, buffers),
            foreach=False,
            fused=False,
            weight_decay=0.0,
            momentum=self._momentum,
            lr=self._learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for n, buffer in zip(active, buffers, strict=True):
            self._momentum_buffers[n] = buffer

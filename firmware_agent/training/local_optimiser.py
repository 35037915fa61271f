"""The optimiser of a drive's local training, as the job says: plain SGD, or any other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from firmware_agent.common.errors import ModelError, user_errors
from firmware_agent.common.frames.session_frames import Code, Job
from firmware_agent.common.optimisers.torch_optimisers import (
    find_torch_optimiser,
    make_torch_optimiser,
    plain_arguments,
)
from firmware_agent.common.shipped_code import ShippedCode, load_code
from firmware_agent.training.sgd import LocalSgd


class LocalOptimiser(Protocol):
    """Steps the parameters of a model."""

    def zero_grad(self) -> None:
        """Drop all gradients."""

    def step(self) -> None:
        """Update every parameter that has a gradient."""


class AdjustedOptimiser:
    """An optimiser that is given gradients with the proximal term, cut to a norm."""

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        inner: LocalSgd | torch.optim.Optimizer,
        proximal: float,
        clip_norm: float | None,
    ) -> None:
        """Step `parameters` by `inner`.

        Args:
            parameters: that are trained.
            inner: made of them.
            proximal: mu of mu/2 ||w - w_0||^2, w_0 being the parameters as they are now.
            clip_norm: largest Euclidean norm of a step's gradient; None for any.
        """
        self._parameters, self._inner, self._clip_norm = parameters, inner, clip_norm
        self._proximal = proximal
        self._anchors = [p.detach().clone() for p in parameters] if proximal else []

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        with torch.no_grad():
            for parameter, anchor in zip(self._parameters, self._anchors, strict=False):
                if parameter.grad is not None:
                    parameter.grad = parameter.grad + self._proximal * (parameter - anchor)
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip_norm, foreach=False)
        self._inner.step()


def make_local_optimiser(
    job: Job, parameters: Iterable[torch.nn.Parameter], learning_rate: float | None = None
) -> LocalOptimiser:
    """Return the job's optimiser, of those parameters that are trained, without any state yet.

    Args:
        job: says which.
        parameters: of the model.
        learning_rate: in place of the job's.

    Raises:
        ModelError: it is unknown, cannot be imported, or refuses its options.
    """
    rate = job.learning_rate if learning_rate is None else learning_rate
    if job.optimiser is None and job.clip_norm is None:
        return LocalSgd(parameters, rate, job.momentum, job.proximal)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if job.optimiser is None:
        return AdjustedOptimiser(trained, LocalSgd(trained, rate, job.momentum), job.proximal, job.clip_norm)
    return AdjustedOptimiser(trained, _make(job.optimiser, trained, rate), job.proximal, job.clip_norm)


def _make(code: Code, trained: list[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
    if ":" not in code.name:
        return make_torch_optimiser(find_torch_optimiser(code.name), trained, plain_arguments(code.arguments), rate)
    target = load_code("optimizer", ShippedCode(code.name, code.source))
    try:
        return make_torch_optimiser(target, trained, plain_arguments(code.arguments), rate)
    except user_errors() as error:
        told = f"optimizer {code.name!r}: making it with {dict(code.arguments)} failed: {error!r}"
        raise ModelError(told) from error

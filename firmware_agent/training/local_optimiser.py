"""The optimiser of a drive's local training, as the job says: plain SGD, or any other."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from firmware_agent.common.errors import OptimiserFailed, user_errors
from firmware_agent.common.folded_traceback import describe_error
from firmware_agent.common.frames.session_frames import Job
from firmware_agent.common.optimisers.torch_optimisers import find_torch_optimiser, make_torch_optimiser
from firmware_agent.common.shipped_code import ShippedCode, load_code
from firmware_agent.training.sgd import LocalSgd


class AdjustedOptimiser(LocalSgd):
    """Any optimiser in place of the rule of SGD: it is given gradients with the proximal term, cut to a norm."""

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
            proximal: mu, as of `LocalSgd`.
            clip_norm: largest Euclidean norm of a step's gradient; None for any.
        """
        super().__init__(parameters, 0.0, 0.0, proximal)
        self._inner, self._clip_norm = inner, clip_norm

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient.

        Raises:
            OptimiserFailed: the optimiser raised.
        """
        for parameter, anchor in zip(self._parameters, self._anchors, strict=False):  # no anchors without the term
            if parameter.grad is not None:
                parameter.grad = parameter.grad + self._proximal * (parameter - anchor)
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip_norm, foreach=False)
        with torch.enable_grad():  # as a loop of one's own calls it
            try:
                self._inner.step()
            except user_errors() as error:
                raise OptimiserFailed(describe_error(error)) from error


def make_local_optimiser(
    job: Job, parameters: Iterable[torch.nn.Parameter], learning_rate: float | None = None
) -> LocalSgd:
    """Return the job's optimiser, of those parameters that are trained, without any state yet.

    Args:
        job: says which.
        parameters: of the model.
        learning_rate: in place of the job's.

    Raises:
        ModelError: it is unknown or cannot be imported.
        BaseException: its class raised.
    """
    rate, code = job.learning_rate if learning_rate is None else learning_rate, job.optimiser
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if code is None and job.clip_norm is None:
        return LocalSgd(trained, rate, job.momentum, job.proximal)
    if code is None:
        return AdjustedOptimiser(trained, LocalSgd(trained, rate, job.momentum), job.proximal, job.clip_norm)
    own = ShippedCode(code.name, code.source)
    kind = load_code("optimizer", own) if ":" in own.name else find_torch_optimiser(own.name)
    made = make_torch_optimiser(kind, trained, code.arguments, rate)
    return AdjustedOptimiser(trained, made, job.proximal, job.clip_norm)

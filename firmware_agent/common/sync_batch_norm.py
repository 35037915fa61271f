"""Batch normalisation over the records of all participants of a step, and with statistics that stay as they are.

Notation of Ioffe and Szegedy 2015 (arXiv:1502.03167, Algorithm 1): per channel x^ = (x - mu) / sigma, y = gamma x^ +
beta. Participant i has n_i of the N = sum n_j values of a channel, and the loss of the step is sum (n_i / N) L_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.frame_fields import MAX_REDUCE_BYTES

Values = npt.NDArray[np.float64]
Reduction = Callable[[Values], Values]
_MAX_FEATURES = (MAX_REDUCE_BYTES // 8 - 1) // 2


def alone(values: Values) -> Values:
    """Return the sum over one participant."""
    return values


class StatisticsExchange:
    """Where all layers of a model exchange: `reduce` returns the sum of the values over all participants."""

    def __init__(self) -> None:
        """Begin alone."""
        self.reduce: Reduction = alone


class SynchronisedBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm*d` whose statistics in training are those of all participants' records together.

    Every participant must come to the same layers in the same order. Each then has the same running statistics, and
    the mean of their gradients, weighted by their records, is that of one process with the whole batch.
    """

    def __init__(self, plain: _BatchNorm, meeting: StatisticsExchange) -> None:
        """Take the place of `plain`, and its weights and buffers, which stay the same tensors."""
        super().__init__(plain.num_features, plain.eps, plain.momentum, plain.affine, plain.track_running_stats)
        self._meeting = meeting
        self.weight, self.bias = plain.weight, plain.bias
        self.running_mean, self.running_var = plain.running_mean, plain.running_var
        self.num_batches_tracked = plain.num_batches_tracked
        self.train(plain.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise (batch, channels, ...); outside of training as `torch.nn.BatchNorm*d` does.

        Raises:
            ValueError: all participants together have one value per channel.
        """
        if not self.training:
            running = self.running_mean, self.running_var
            batch = self.running_mean is None
            return functional.batch_norm(input, *running, self.weight, self.bias, batch, 0.0, self.eps)
        with torch.no_grad():
            own = input.numel() / input.shape[1]
            total, mean, variance = self._statistics(input, own)
            self._track(mean, variance * total / (total - 1))
        mean, variance = mean.to(input.dtype), variance.to(input.dtype)
        normalised: torch.Tensor = _Normalise.apply(
            *(input, self.weight, self.bias, self.eps),
            _ChannelStatistics(mean, variance, own, own / total),
            self._meeting,
        )  # type: ignore[no-untyped-call]
        return normalised

    def _statistics(self, images: torch.Tensor, own: float) -> tuple[float, torch.Tensor, torch.Tensor]:
        """Return N, and mean and biased variance of each channel, in float64.

        One exchange, of n_i and the sums of x - c and (x - c)^2. The shift c is the running mean, which all
        participants have in common: as it nears the mean, nothing is lost where the squares are subtracted.
        """
        dims = [0, *range(2, images.ndim)]
        # Not torch.var_mean: it sums one value after the other, which loses two digits, and a deep network two more.
        centre = images.mean(dims)
        spread = (images - centre.view(_per_channel(images))).square_().mean(dims)
        shift = 0.0 if self.running_mean is None else self.running_mean.double()
        offset = centre.double() - shift
        sums = torch.stack([own * offset, own * (spread.double() + offset.square())])
        values = self._meeting.reduce(np.concatenate([[own], sums.numpy().reshape(-1)]))
        total = float(values[0])
        if total <= 1:
            raise ValueError("Expected more than 1 value per channel when training")
        first, second = torch.from_numpy(values[1:] / total).reshape(2, -1)
        return total, first + shift, (second - first.square()).clamp_(min=0)

    def _track(self, mean: torch.Tensor, unbiased_variance: torch.Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased_variance)):
            running.mul_(1 - factor).add_(new.to(running.dtype), alpha=factor)


class _ChannelStatistics(NamedTuple):
    """Mean and biased variance of each channel over all participants; own values of a channel, and their share."""

    mean: torch.Tensor
    variance: torch.Tensor
    own: float
    share: float


class _Normalise(torch.autograd.Function):
    """Normalise by statistics that depend on the input of every participant."""

    @staticmethod
    def forward(
        ctx: Any,
        images: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        statistics: _ChannelStatistics,
        meeting: StatisticsExchange,
    ) -> torch.Tensor:
        mean, variance, own, share = statistics
        ctx.save_for_backward(images, weight, mean, variance)
        ctx.eps, ctx.own, ctx.share, ctx.meeting = eps, own, share, meeting
        return functional.batch_norm(images, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of L_i, of which the host forms sum (n_i / N) g_i.

        With g = dL_i/dy the gradient of the whole loss at an x of participant i is (n_i / N) gamma / sigma
        (g - S_1 / n_i - x^ S_2 / n_i), where S_1 = sum_j (n_j / N) sum g and S_2 = sum_j (n_j / N) sum g x^ run over
        all participants: n_i / N is left to the host. Those of gamma and beta, sum g x^ and sum g, need no exchange.
        """
        images, weight, mean, variance = ctx.saved_tensors
        own_images, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
            *(gradient, images, weight, mean, variance, None, None, False, ctx.eps), [True, True, True]
        )
        if ctx.needs_input_grad[0]:
            sums = torch.stack([by_bias, by_weight]).double() * ctx.share
            first, second = torch.from_numpy(ctx.meeting.reduce(sums.numpy().reshape(-1)) / ctx.own).reshape(2, -1)
            inverse = (variance.double() + ctx.eps).rsqrt()
            scale = inverse if weight is None else inverse * weight.double()
            slope = second * scale * inverse
            shape = _per_channel(images)
            own_images.addcmul_(images, slope.to(images.dtype).view(shape), value=-1)
            own_images.sub_((first * scale - slope * mean.double()).to(images.dtype).view(shape))
        affine = weight is not None
        return own_images, by_weight if affine else None, by_bias if affine else None, *[None] * 3


def _per_channel(images: torch.Tensor) -> tuple[int, ...]:
    return 1, -1, *[1] * (images.ndim - 2)


def synchronise(model: nn.Module, meeting: StatisticsExchange) -> nn.Module:
    """Return the model with every `torch.nn.BatchNorm*d` replaced; names and tensors of its state stay.

    Raises:
        ModelError: a layer normalises in its own way, or is too wide for the wire.
    """
    replaced: dict[int, nn.Module] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, _BatchNorm):
            continue
        if id(module) not in replaced:
            _check(module, name)
            replaced[id(module)] = SynchronisedBatchNorm(module, meeting)
        if not name:
            return replaced[id(module)]
        parent, _, key = name.rpartition(".")
        setattr(model.get_submodule(parent), key, replaced[id(module)])
    return model


def freeze_statistics(model: nn.Module) -> None:
    """Have every batch normalisation use its running statistics and leave them as they are.

    Raises:
        ModelError: a layer has none.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            if module.running_mean is None:
                raise ModelError(
                    f"batch_norm: frozen: layer {name!r} keeps no running statistics; choose device or synchronised"
                )
            module.eval()


def _check(module: _BatchNorm, name: str) -> None:
    if type(module).forward is not _BatchNorm.forward:
        raise ModelError(
            f"batch_norm: synchronised: layer {name!r} is a {type(module).__name__}, which normalises in its own way; "
            "use torch.nn.BatchNorm1d, 2d or 3d, or choose device or frozen"
        )
    if module.num_features > _MAX_FEATURES:
        raise ModelError(
            f"batch_norm: synchronised: layer {name!r} has {module.num_features} channels, the wire takes "
            f"{_MAX_FEATURES}; choose device or frozen"
        )

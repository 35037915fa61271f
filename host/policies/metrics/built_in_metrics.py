"""Built-in metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from firmware_agent.common.errors import ModelError
from firmware_agent.common.losses.built_in_losses import NextToken, mean_by_record, ragged_target, target
from host.config.plugins.kinds import METRIC

if TYPE_CHECKING:
    from torch import Tensor


class Mean:
    """The mean over records of what batches have as theirs."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._sum, self._count = 0.0, 0

    def add(self, mean: float, count: int) -> None:
        """Take in a batch of so many records."""
        self._sum, self._count = self._sum + mean * count, self._count + count

    def compute(self) -> float:
        """Return the mean."""
        return self._sum / self._count


@METRIC.register("perplexity", "Of a language model: e to the mean cross-entropy of a next token.")
class Perplexity(Mean):
    """``exp(H)``, H in nats over all places but the last."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self._loss = NextToken()

    def update(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Take in (records, places, tokens) logits."""
        self.add(float(self._loss(outputs, batch)), len(outputs))

    def compute(self) -> float:
        """Return it; infinite where it is too large for a number."""
        mean = super().compute()
        return math.exp(mean) if mean < math.log(1e300) else math.inf


@METRIC.register("mean_absolute_error", "Of as many outputs as the target has values.")
class MeanAbsoluteError(Mean):
    """``mean |y - f(x)|``; of ragged records the mean over records of their means over their own places."""

    def update(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Take in outputs."""
        wanted, lengths = ragged_target(batch)
        errors = (outputs.reshape(wanted.shape) - wanted.to(outputs.dtype)).abs()
        self.add(float(errors.mean() if lengths is None else mean_by_record(errors, lengths)), len(wanted))


@METRIC.register("top_5_accuracy", "Share of records whose class is among the five largest logits.")
class TopFiveAccuracy(Mean):
    """0 to 1."""

    def update(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Take in (records, classes) logits."""
        labels = target(batch)
        if labels.ndim != 1 or labels.is_floating_point():
            raise ModelError("metrics: top_5_accuracy is of class numbers, one for each record; leave it out")
        right = (outputs.topk(min(5, outputs.shape[1]), 1).indices == labels[:, None]).any(1)
        self.add(float(right.float().mean()), len(labels))

"""What the weights after a round are worth, by held-out records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec


class Judgement(msgspec.Struct, frozen=True):
    """Of one model, on held-out records.

    Attributes:
        accuracy: share of records that are classified rightly, 0 to 1; NaN where they have no classes.
        loss: mean.
        metrics: the job's others, by name.
    """

    accuracy: float
    loss: float
    metrics: dict[str, float] = msgspec.field(default_factory=dict)


class HeldOutMetric(Protocol):
    """A figure of a model's outputs on many records, made anew for each judgement."""

    def update(self, outputs: Any, batch: Mapping[str, Any]) -> None:
        """Take in the outputs for a batch, field -> (records, ...) tensor."""

    def compute(self) -> float:
        """Return the figure of all batches."""

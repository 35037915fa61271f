"""What drives hand over of a model that is cut, and what they get back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firmware_agent.common.slices import Array


@dataclass(frozen=True)
class ActivationBatch:
    """What one drive handed over of one part of a step.

    Attributes:
        device: the drive.
        values: the crossing tensors, (records, ...) each.
        labels: (records,) int64.
        random: the state of its generator behind the front; None if the front drew nothing.
    """

    device: str
    values: Sequence[Array]
    labels: Array
    random: Array | None = None


@dataclass(frozen=True)
class ActivationGrads:
    """What one drive gets back.

    Attributes:
        loss: the mean over its records.
        gradients: of its values, by place.
        random: the state of its generator behind the tail.
    """

    loss: float
    gradients: dict[str, Array]
    random: Array | None = None


class ServerModelNotFinite(Exception):
    """Raised when what the host's part of the model makes of some activations is no finite number; says what."""

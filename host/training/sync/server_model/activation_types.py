"""What drives and host have of a model that is cut, what drives hand over, and what they get back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firmware_agent.common.slices import Array
from firmware_agent.common.split.cutting import Crossing, Cut
from firmware_agent.common.weights import buffer_names, trained_names


@dataclass(frozen=True)
class SplitState:
    """Whose the tensors of a model that is cut are.

    Attributes:
        front: names of the drives' part of the state, in the order in which they have it.
        front_trained, front_buffers: which of them are parameters with a gradient, and buffers.
        trained: parameters of the host's part with a gradient; what no part uses is the host's.
        kept: buffers of the host's part that steps change.
        state_bytes: of what is the host's.
    """

    front: tuple[str, ...]
    front_trained: tuple[str, ...]
    front_buffers: tuple[str, ...]
    trained: tuple[str, ...]
    kept: frozenset[str]
    state_bytes: int


def split_state(
    cut: Cut, weights: Mapping[str, Array], trained: Sequence[str], tied: Mapping[str, str], batch_norm: str
) -> SplitState:
    """Return whose the tensors of a model are; arguments are those of `ServerModel`."""
    front = tuple(cut.front.state_dict())
    return SplitState(
        front=front,
        front_trained=tuple(trained_names(cut.front)),
        front_buffers=tuple(buffer_names(cut.front)),
        trained=tuple(name for name in trained if name not in front),
        kept=frozenset(buffer_names(cut.tail) if batch_norm != "frozen" else ()),
        state_bytes=sum(array.nbytes for name, array in weights.items() if name not in {*front, *tied}),
    )


@dataclass(frozen=True)
class HandOver:
    """What drives of a model that is cut hand over, and get back.

    Attributes:
        crossing: the values that cross.
        answered: whether the drives need the gradients of these: not for a front that is not trained.
        classes: how many the model tells apart; labels count from 0 to one less.
    """

    crossing: Sequence[Crossing]
    answered: bool
    classes: int


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

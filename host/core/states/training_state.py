"""State of a training, as a checkpoint keeps it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from firmware_agent.common.errors import CheckpointError
from firmware_agent.common.slices import Array, tensor_specs


@dataclass(frozen=True)
class TrainingState:
    """All that a training needs to go on as if it had never stopped; every draw comes from seed and round.

    Attributes:
        round: rounds done.
        accuracy: after the last of them, 0 to 1.
        array_seconds: the array's composed time.
        weights: name -> array, the global weights.
        strategy: the strategy's, or optimiser's, own tensors.
        progress: where the run stands beside all that; what JSON can hold.
        service: what drives do for their host; empty without `host_io`.
    """

    round: int
    accuracy: float
    array_seconds: float
    weights: Mapping[str, Array]
    strategy: Mapping[str, Array]
    progress: Mapping[str, Any] = field(default_factory=dict)
    service: Mapping[str, Array] = field(default_factory=dict)

    def tensors(self) -> dict[str, Array]:
        """Return all tensors under names that tell them apart: see `split_tensors`."""
        parts = zip(_PARTS, (self.weights, self.strategy, self.service), strict=True)
        return {prefix + name: array for prefix, part in parts for name, array in part.items()}

    def weights_like(self, model: Mapping[str, Array]) -> dict[str, Array]:
        """Return the weights in the order of a model's weights and buffers: a file may give them in any.

        Raises:
            CheckpointError: they are of another model.
        """
        weights = {name: self.weights[name] for name in model if name in self.weights}
        if len(weights) != len(self.weights) or tensor_specs(weights) != tensor_specs(model):
            raise CheckpointError("the checkpoint's weights are not those of the model; resume with what wrote it")
        return weights


def check_in_place(in_place: Mapping[str, str], progress: Mapping[str, Any]) -> None:
    """Return if drives have the records in place that they had when a run's `progress` was written.

    Args:
        in_place: drive -> hash of its own records; empty until it has said hello.
        progress: of a `TrainingState`; an old one does not say it.

    Raises:
        CheckpointError: one has others.
    """
    before: Mapping[str, str] = progress.get("in_place", {})
    if changed := [drive for drive, own in in_place.items() if own and (before.get(drive) or own) != own]:
        raise CheckpointError(
            f"{', '.join(changed)}: other records lie there in place than this run trained on; put those back, or "
            "begin a new run"
        )


_LENGTH_BYTES = 8
_PARTS = "weights/", "strategy/", "service/"


def number_or_nan(number: float | None) -> float:
    """Return a number that JSON has as null if it is none."""
    return math.nan if number is None else number


class _Header(msgspec.Struct, frozen=True):
    round: int
    accuracy: float | None
    array_seconds: float
    progress: dict[str, Any]


def split_tensors(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], ...]:
    """Return the weights, the strategy's tensors and those of drives' service that `TrainingState.tensors` gave."""
    return tuple(
        {name.removeprefix(part): array for name, array in tensors.items() if name.startswith(part)} for part in _PARTS
    )


def pack_state(state: TrainingState) -> bytes:
    """Return a state as bytes."""
    header = msgspec.json.encode(_Header(state.round, state.accuracy, state.array_seconds, dict(state.progress)))
    content = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in state.tensors().items()})
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header + content


def hash_weights(weights: Mapping[str, Array]) -> bytes:
    """Return a hash of all weights to the bit, which servers compare."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]).reshape(-1).view(np.uint8).data)
    return digest.digest()


def unpack_state(content: bytes) -> TrainingState:
    """Return the state that `pack_state` made these bytes of.

    Raises:
        CheckpointError: it did not.
    """
    edge = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    try:
        header = msgspec.json.decode(content[_LENGTH_BYTES:edge], type=_Header)
        tensors = safetensors.numpy.load(content[edge:])
    except (msgspec.MsgspecError, SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"another server's state cannot be read ({error}); do all run the same csd-emu?"
        ) from error
    accuracy = number_or_nan(header.accuracy)
    weights, strategy, service = split_tensors(tensors)
    return TrainingState(header.round, accuracy, header.array_seconds, weights, strategy, header.progress, service)

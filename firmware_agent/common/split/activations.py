"""Activations and gradients that cross a cut on the wire, and the random draws on both sides of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.send_queue import Piece
from firmware_agent.common.slices import Array
from firmware_agent.common.split.cutting import Crossing

LABELS, RANDOM = "labels", "random"
# What crosses a cut is wanted before all tensors of its step, in either direction.
CROSSING_ORDER = -1
_LABEL_DTYPE = "<i8"


def step_seed(seed: int, device: str, step: int) -> int:
    """Return what seeds torch's generator for a device's part of a step; it depends on these three and nothing else."""
    return int(np.random.SeedSequence([seed, device_number(device), step]).generate_state(1)[0])


def device_number(device: str) -> int:
    """Return the number that makes a device's random draws its own."""
    return int.from_bytes(device.encode(), "big")


def epoch_order(seed: int, device: int, number: int, epoch: int, samples: int) -> npt.NDArray[np.int64]:
    """Return the order, int64, shape (samples,), in which a device takes its records in a pass.

    Args:
        seed: of the job.
        device: its `device_number`.
        number: of the federated round; of synchronous steps on records in place, the epoch of the run.
        epoch: of the passes of the round, from 0.
        samples: records of the device.
    """
    return np.random.default_rng([seed, device, number, epoch]).permutation(samples)


def is_random_state(values: Array) -> bool:
    """Return whether these bytes are a state of torch's generator."""
    try:
        torch.Generator().set_state(torch.from_numpy(values.copy()))
    except (RuntimeError, TypeError):
        return False
    return True


def activation_specs(crossing: Sequence[Crossing], records: int, drawn: bool) -> list[TensorSpec]:
    """Return the tensors that a drive sends of a part of a step.

    Args:
        crossing: the values that cross; on the wire they are called by their places.
        records: in the part.
        drawn: whether the front has drawn random numbers: then the state of its generator follows, with which the tail
            goes on, so that both draw what the whole model would have drawn.

    Raises:
        ModelError: a value has a dtype that cannot cross the wire.
    """
    return [*value_specs(crossing, records), TensorSpec(LABELS, _LABEL_DTYPE, (records,)), *_random_specs(drawn)]


def gradient_specs(
    crossing: Sequence[Crossing], records: int, drawn: bool = False, trained: bool = True
) -> list[TensorSpec]:
    """Return the tensors that a host sends back: the gradients of those that can have one.

    Args:
        crossing: the values that crossed.
        records: in the part.
        drawn: whether the front has drawn random numbers and has another part to draw for: then the state of the
            generator behind the tail follows.
        trained: whether the front needs gradients.
    """
    specs = zip(crossing, value_specs(crossing, records), strict=True)
    return [*(spec for each, spec in specs if trained and has_gradient(each)), *_random_specs(drawn)]


def value_specs(crossing: Sequence[Crossing], records: int) -> list[TensorSpec]:
    """Return the crossing values themselves, as `activation_specs`."""
    return [TensorSpec(str(place), _wire_dtype(each), (records, *each.shape)) for place, each in enumerate(crossing)]


def has_gradient(value: Crossing) -> bool:
    """Return whether a value that crosses is of a kind that has a gradient."""
    return bool(getattr(torch, value.dtype).is_floating_point)


def crossing_name(name: str) -> str:
    """Return what a tensor that crosses is called beside a model's own tensors."""
    return f"crossing/{name}"


def named_piece(piece: Piece) -> Piece:
    """Return a piece under the name that its tensor has beside all others."""
    return piece._replace(tensor=crossing_name(piece.tensor)) if piece.order == CROSSING_ORDER else piece


def _random_specs(drawn: bool) -> list[TensorSpec]:
    return [TensorSpec(RANDOM, "|u1", tuple(torch.get_rng_state().shape))] if drawn else []


def _wire_dtype(value: Crossing) -> str:
    try:
        return np.dtype(value.dtype).newbyteorder("<").str
    except TypeError as error:
        raise ModelError(
            f"placement: {value.name}, which crosses the cut, is {value.dtype}, which the wire does not have; cut "
            "elsewhere"
        ) from error

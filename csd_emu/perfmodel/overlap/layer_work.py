"""Costs of a model's layers on a drive: seconds to compute, bytes to exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.sharing import check_numbers
from firmware_agent.common.errors import ConfigurationError

if TYPE_CHECKING:  # it imports torch
    from firmware_agent.common.layer_costs import LayerWork


@dataclass(frozen=True)
class TensorCost:
    """A tensor that is exchanged: pushed as a gradient, pulled as a parameter, so many bytes each way."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class LayerCost:
    """A layer of the model, on one drive with its batch.

    Attributes:
        name: of the layer.
        tensors: what is exchanged for it, once each; a tensor that several layers share belongs to the first.
        forward_seconds: from its inputs to its outputs, all micro-batches of the step together.
        backward_seconds: from the gradient of its outputs to those of its tensors and inputs.
    """

    name: str
    tensors: tuple[TensorCost, ...]
    forward_seconds: float
    backward_seconds: float

    def __post_init__(self) -> None:
        """Refuse seconds and sizes that no layer has."""
        counts = {"forward seconds": self.forward_seconds, "backward seconds": self.backward_seconds}
        check_numbers(f"layer {self.name!r}", {}, counts | {tensor.name: tensor.size_bytes for tensor in self.tensors})

    @property
    def size_bytes(self) -> int:
        """What is exchanged for it, each way."""
        return sum(tensor.size_bytes for tensor in self.tensors)


Costs = tuple[LayerCost, ...]
"""A model's layers in the order of the forward pass."""


class DriveTransfers(NamedTuple):
    """What one drive computed in a step, and the slices that crossed its link.

    Attributes:
        costs: bytes and compute seconds of each layer.
        slices: (slices, 4) float64 of those that crossed: 1 for a push and 0 for a pull, bytes, and seconds of one
            clock when it left its queue and when it was read; of a pull, when the host was told so.
    """

    costs: Costs
    slices: npt.NDArray[np.float64]


def exchange_bytes(costs: Costs) -> int:
    """Return what a drive exchanges in a step, each way."""
    return sum(layer.size_bytes for layer in costs)


def compute_seconds(costs: Costs) -> float:
    """Return how long a drive computes in a step: forward and backward of all layers."""
    return sum(layer.forward_seconds + layer.backward_seconds for layer in costs)


def scale_compute(costs: Costs, factor: float) -> Costs:
    """Return the costs on a drive that takes `factor` times as long."""
    return tuple(
        replace(
            layer,
            forward_seconds=layer.forward_seconds * factor,
            backward_seconds=layer.backward_seconds * factor,
        )
        for layer in costs
    )


def number_tensors(costs: Sequence[Costs]) -> tuple[list[list[int]], list[int]]:
    """Return the numbers of each layer's tensors in the order of first use, and each tensor's bytes.

    Args:
        costs: one per drive, of one model.

    Raises:
        ConfigurationError: there is no drive or no layer, or the drives' models differ.
    """
    if not costs or not costs[0]:
        raise ConfigurationError("a simulation needs a drive and a model with a layer")
    shape = [layer.tensors for layer in costs[0]]
    if any([layer.tensors for layer in part] != shape for part in {id(part): part for part in costs}.values()):
        raise ConfigurationError("the drives' models differ in their layers or tensors; all train the same one")
    order = count()
    return [[next(order) for _ in tensors] for tensors in shape], [each.size_bytes for own in shape for each in own]


def share_out(
    layers: Sequence[LayerWork],
    forward_seconds: float,
    backward_seconds: float,
    encode_seconds: float = 0.0,
    exchanged: Mapping[str, int] | None = None,
) -> Costs:
    """Return what each layer takes of a step's seconds, in forward order.

    Forward and backward go by operations, evenly if there are none. Encoding goes by bytes and lies behind the layer's
    backward pass: a gradient is ready when it is encoded.

    Args:
        layers: of the model, see `firmware_agent.common.layer_costs.trace_layers`.
        forward_seconds: of the whole step, as are the next ones.
        backward_seconds: without the encoding.
        encode_seconds: of all gradients.
        exchanged: what is pushed and pulled in each step, name -> bytes; None for all tensors as they are. Any other is
            left out, also if it is pulled alone, as a frozen parameter is.
    """
    sent = [
        {
            name: size
            for name in layer.tensors
            if (size := (layer.tensors if exchanged is None else exchanged).get(name))
        }
        for layer in layers
    ]
    forward = _shares([layer.forward_operations for layer in layers])
    backward = _shares([layer.backward_operations for layer in layers])
    encode = _shares([float(sum(sizes.values())) for sizes in sent])
    return tuple(
        LayerCost(
            layer.name,
            tuple(TensorCost(name, size) for name, size in sizes.items()),
            forward_seconds * f,
            backward_seconds * b + encode_seconds * e,
        )
        for layer, sizes, f, b, e in zip(layers, sent, forward, backward, encode, strict=True)
    )


def _shares(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights] if total else [1 / len(weights)] * len(weights)

"""Costs of a model's layers on a drive: seconds to compute, bytes to exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from csd_emu.perfmodel.sharing import check_numbers


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


def ideal_step_seconds(costs: Sequence[Costs], bytes_per_second: float) -> float:
    """Return what no schedule can beat: the longest drive's compute, or all bytes over the host's side of the link."""
    wire_seconds = sum(map(exchange_bytes, costs)) / bytes_per_second
    return max(wire_seconds, max(map(compute_seconds, costs), default=0.0))

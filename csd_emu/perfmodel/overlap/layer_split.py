"""A drive's measured seconds of a step, shared out over the model's layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from csd_emu.perfmodel.overlap.layer_work import Costs, LayerCost, TensorCost

if TYPE_CHECKING:  # it imports torch
    from firmware_agent.common.layer_costs import LayerWork

READ = "read"


def share_out(
    layers: Sequence[LayerWork],
    forward_seconds: float,
    backward_seconds: float,
    encode_seconds: float = 0.0,
    read_seconds: float | None = None,
    exchanged: Mapping[str, int] | None = None,
) -> Costs:
    """Return what each layer takes of a step's seconds, in forward order.

    Forward and backward go by operations, evenly if there are none. Encoding goes by bytes and lies behind the layer's
    backward pass: a gradient is ready when it is encoded. Reading the step's records comes first, as a layer of its own
    without tensors: it waits for no parameters.

    Args:
        layers: of the model, see `firmware_agent.common.layer_costs.trace_layers`.
        forward_seconds: of the whole step, as are the next ones.
        backward_seconds: without the encoding.
        encode_seconds: of all gradients.
        read_seconds: of the records, from flash; None for no such layer.
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
    costs = tuple(
        LayerCost(
            layer.name,
            tuple(TensorCost(name, size) for name, size in sizes.items()),
            forward_seconds * f,
            backward_seconds * b + encode_seconds * e,
        )
        for layer, sizes, f, b, e in zip(layers, sent, forward, backward, encode, strict=True)
    )
    return costs if read_seconds is None else (LayerCost(READ, (), read_seconds, 0.0), *costs)


def _shares(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights] if total else [1 / len(weights)] * len(weights)

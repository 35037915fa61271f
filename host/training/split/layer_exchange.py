"""Costs of a model's layers wherever they are computed: bytes, arithmetic, memory, and what a cut hands over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from csd_emu.perfmodel.overlap.layer_work import TensorCost
from csd_emu.perfmodel.split.split_problem import LayerSplitCost
from csd_emu.util.record_shape import Shape
from firmware_agent.common.errors import ModelError
from firmware_agent.common.first_use import sent_tensors
from firmware_agent.common.layer_costs import LayerWork, trace_layers
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.split.cutting import Crossing, CutPoint, list_cuts

# Batch normalisation needs more than one value per channel.
_RECORDS = 2
_FIRST = "it is the first: raw records would leave the drives"


@dataclass(frozen=True)
class LayerExchange:
    """What of a model is exchanged in a step.

    Attributes:
        buffers: whether running statistics are, as unless they are frozen.
        double: whether floating-point values have eight bytes.
    """

    buffers: bool = True
    double: bool = False


def inspect_layers(spec: ShippedCode, shape: Shape, exchange: LayerExchange) -> tuple[LayerSplitCost, ...]:
    """Build the model and return its layers in forward order.

    No values are wanted: the model is built without memory, on torch's meta device, where nothing is computed. One that
    cannot be is built and run in earnest, which takes as long as its forward pass.

    Raises:
        ModelError: it cannot be built, or does not take images of this shape.
    """
    try:
        with torch.device("meta"):
            model, images = build_model(spec), torch.zeros(_RECORDS, *shape)
            return layer_places(model, images, trace_layers(model, images), exchange)
    except Exception:  # the user's model may look at values; in earnest it says what is wrong with it
        return _inspect_in_earnest(spec, shape, exchange)


def _inspect_in_earnest(spec: ShippedCode, shape: Shape, exchange: LayerExchange) -> tuple[LayerSplitCost, ...]:
    model, images = build_model(spec), torch.zeros(_RECORDS, *shape)
    try:
        layers = trace_layers(model, images)
    except Exception as error:  # the user's model may raise anything
        raise ModelError(f"model {spec.name!r} does not take images of {shape} ({error})") from error
    return layer_places(model, images, layers, exchange)


def layer_places(
    model: nn.Module, images: torch.Tensor, layers: Sequence[LayerWork], exchange: LayerExchange
) -> tuple[LayerSplitCost, ...]:
    """Return the model's layers.

    Args:
        model: nothing in it changes.
        images: what it takes, (records, ...).
        layers: of `trace_layers` for these images.
        exchange: what crosses the link.
    """
    records, tensors = len(images), sent_tensors(model)
    trained = {name for name, tensor in tensors.items() if tensor.requires_grad}
    exchanged = trained | ({name for name, _ in model.named_buffers()} if exchange.buffers else set())
    sizes = {
        name: tensor.numel() * (8 if exchange.double and tensor.is_floating_point() else tensor.element_size())
        for name, tensor in tensors.items()
    }
    cuts = [CutPoint(layers[0].name, (), _FIRST), *list_cuts(model, images)]
    return tuple(
        LayerSplitCost(
            name=layer.name,
            tensors=tuple(TensorCost(name, sizes[name]) for name in layer.tensors if name in exchanged),
            forward_operations=layer.forward_operations / records,
            backward_operations=layer.backward_operations / records,
            tail_bytes=cut.tail_bytes * (2 if exchange.double else 1),
            crossing_bytes=None if cut.reason else sum(_crossing_bytes(each, exchange) for each in cut.crossing),
            pull_only_bytes=sum(sizes[name] for name in layer.tensors if name not in exchanged),
            reason=cut.reason,
        )
        for layer, cut in zip(layers, cuts, strict=True)
    )


def _crossing_bytes(crossing: Crossing, exchange: LayerExchange) -> int:
    kind: torch.dtype = getattr(torch, crossing.dtype)
    return crossing.record_bytes * (8 if exchange.double and kind.is_floating_point else kind.itemsize) // kind.itemsize

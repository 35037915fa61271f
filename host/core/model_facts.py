"""Facts of a model without training it: logits, parameters, bytes of its state, the memory that a step may take."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel import host_node
from csd_emu.perfmodel.host_node import link_of
from csd_emu.profiles import get_profile
from csd_emu.profiles.profile import End
from csd_emu.util.record_shape import Shape
from firmware_agent.common.errors import ModelError
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode

_BATCH = 2  # batch normalisation needs more than one value per channel
_FLOAT_BYTES = 4
# Linux, the interpreter and torch; then weights, gradients, momentum, the copies to and from the host; then
# activations, their gradients and the kernels' workspace.
_BASE_BYTES = 3 << 28
_WEIGHT_COPIES, _ACTIVATION_COPIES = 5, 3


@dataclass(frozen=True)
class ModelFacts:
    """Facts of one model at one input shape.

    Attributes:
        classes: length of its logits; 1 if it does not give a row of them for each record.
        parameters: trainable values.
        activations: values that its layers put out for one record.
    """

    classes: int
    parameters: int
    activations: int

    def memory_bytes(self, batch_size: int) -> int:
        """Return a generous guess of the DRAM that a drive needs to train at `batch_size`."""
        values = _WEIGHT_COPIES * self.parameters + _ACTIVATION_COPIES * self.activations * batch_size
        return _BASE_BYTES + _FLOAT_BYTES * values


def inspect_model(spec: ShippedCode, input_shape: Shape) -> ModelFacts:
    """Build the model and pass two empty images through it.

    On real memory: torch's meta device would need none, but imports its compiler, which takes longer.

    Raises:
        ModelError: it cannot be built, does not take images of this shape, or does not return logits.
    """
    shape = "x".join(map(str, input_shape))
    try:
        logits, facts = pass_facts(build_model(spec), torch.zeros(_BATCH, *input_shape))
    except Exception as error:  # the user's model may raise anything
        raise ModelError(
            f"model {spec.name!r} does not take images of {shape} ({error}); name another shape with --input"
        ) from error
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != _BATCH:
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ModelError(
            f"model {spec.name!r} gives {found} for {_BATCH} images of {shape}, not one row of logits each"
        )
    return facts


def pass_facts(model: nn.Module, *fields: torch.Tensor) -> tuple[Any, ModelFacts]:
    """Return what a model gives for the fields of a batch of records, and its facts."""
    activations = 0

    def count(module: nn.Module, _: Any, out: Any) -> None:
        nonlocal activations
        activations += out.numel() if isinstance(out, torch.Tensor) and not [*module.children()] else 0

    with torch.no_grad(), register_module_forward_hook(count):
        outputs = model(*fields)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    classes = outputs.shape[1] if isinstance(outputs, torch.Tensor) and outputs.ndim == 2 else 1
    return outputs, ModelFacts(classes, parameters, activations // len(fields[0]))


@dataclass(frozen=True)
class Load:
    """What is trained, as far as time and bytes go.

    Attributes:
        spec: the model.
        shape: (channels, height, width) of an image.
        state_bytes: of weights and buffers, so of gradients and buffers too: what crosses the link each way.
        gradient_bytes: of the gradients alone.
        record_bytes: of an image with its label.
        optimiser_bytes: that the optimiser remembers, which cross between servers with the mean of their weights.
    """

    spec: ShippedCode
    shape: Shape
    state_bytes: int
    gradient_bytes: int
    record_bytes: int
    optimiser_bytes: int = 0


_LABEL_BYTES = 8


def inspect_load(spec: ShippedCode, shape: Shape, freeze: Collection[str] = ()) -> Load:
    """Build the model and add up its bytes; images are stored as bytes, labels as 64-bit numbers.

    Parameters that match `freeze` have no gradient. They count as part of the state that crosses both ways, though
    drives return none of them.

    Raises:
        ModelError: it cannot be built, or `freeze` does not fit it.
    """
    model = build_model(spec, freeze)
    state = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    gradients = sum(value.numel() * value.element_size() for value in model.parameters() if value.requires_grad)
    return Load(spec, shape, state, gradients, math.prod(shape) + _LABEL_BYTES)


def exchange_seconds(config: ArrayConfig, load: Load, end: End | None = None) -> float:
    """Return what the exchange, and the host's sum and optimiser, add to each step of an array.

    With an `end`, if the figures of all profiles stand at that end of their bands.
    """
    host = get_profile(config.host.profile).at(end)
    drives = [get_profile(device.profile).at(end) for device in config.list_devices()]
    return host_node.exchange_seconds(
        drives, link_of(config.link, host), load.state_bytes, load.gradient_bytes, config.host.trains
    )

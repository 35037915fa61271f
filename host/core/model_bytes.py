"""Sizes for a simulation: bytes of a model's state and of one record."""

from __future__ import annotations

import math
from dataclasses import dataclass

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel import host_node
from csd_emu.perfmodel.host_node import link_of
from csd_emu.profiles import get_profile
from csd_emu.util.record_shape import Shape
from firmware_agent.common.models import ModelSpec, build_model


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

    spec: ModelSpec
    shape: Shape
    state_bytes: int
    gradient_bytes: int
    record_bytes: int
    optimiser_bytes: int = 0


_LABEL_BYTES = 8


def inspect_load(spec: ModelSpec, shape: Shape) -> Load:
    """Build the model and add up its bytes; images are stored as bytes, labels as 64-bit numbers.

    Raises:
        ModelError: it cannot be built.
    """
    model = build_model(spec)
    state = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    gradients = sum(value.numel() * value.element_size() for value in model.parameters() if value.requires_grad)
    return Load(spec, shape, state, gradients, math.prod(shape) + _LABEL_BYTES)


def exchange_seconds(config: ArrayConfig, load: Load) -> float:
    """Return what the exchange, and the host's sum and optimiser, add to each step of an array."""
    host = get_profile(config.host.profile)
    drives = [get_profile(device.profile) for device in config.list_devices()]
    link = link_of(config.link, host)
    return host_node.exchange_seconds(drives, link, load.state_bytes, load.gradient_bytes, config.host.trains)

"""What a simulation trains: bytes of a model's state and of a record."""

from __future__ import annotations

import math

from csd_emu import host_node
from csd_emu.array import ArrayConfig
from csd_emu.profiles import get_profile
from csd_emu.shape import Shape
from firmware_agent.models import ModelSpec, build_model
from host.accounting import link_of
from host.simulation.nodes import Load

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

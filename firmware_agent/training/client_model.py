"""The drive's part of a model that may be too large for the drive as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import nn

from firmware_agent.common.split.cutting import Cut, cut_model


def build_front(build: Callable[[], nn.Module], images: torch.Tensor, layer: str) -> Cut:
    """Return a cut of which the front has memory; of a model that would fill half of what is free, nothing else has.

    Such a model is built without memory, on torch's meta device, and its front's values are left open: whoever asks
    for it sends them before each step. A front that keeps values which are not in its state, or a model that cannot be
    built so, is built as any other, and may turn out to be too large.

    Args:
        build: makes the model.
        images: what it takes, one record at least.
        layer: that the host's part begins with.

    Raises:
        ConfigurationError: the model cannot be cut there.
    """
    lean = _cut_without_memory(build, images, layer)
    return cut_model(build(), images, layer) if lean is None else lean


def free_bytes() -> int:
    """Return how much memory is free."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cut_without_memory(build: Callable[[], nn.Module], images: torch.Tensor, layer: str) -> Cut | None:
    try:
        with torch.device("meta"):
            model = build()
        if _state_bytes(model) < free_bytes() // 2:
            return None
        cut = cut_model(model, images.to("meta"), layer)
    except Exception:  # the user's model may compute with values that are not there; in earnest it says what is wrong
        return None
    if {name for name, _ in cut.front.named_buffers()} - cut.front.state_dict().keys():
        return None
    cut.front.to_empty(device="cpu")
    return cut


def _state_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))

"""The layer before which a model is to be cut, found by its name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from firmware_agent.common.errors import ConfigurationError


def find_layer(names: Sequence[str], layer: str) -> int:
    """Return which of a model's layers, in the order of the forward pass, has this name; never the first one.

    Raises:
        ConfigurationError: it is the first one, or none.
    """
    if layer == names[0]:
        raise ConfigurationError(
            f"placement: {layer!r} is the model's first layer: before it lie the records alone, and none leaves its "
            f"drive; cut at a later layer{f', such as {names[1]!r}' if names[1:] else ''}, or choose none"
        )
    if layer not in names:
        near = difflib.get_close_matches(layer, names[1:], n=3, cutoff=0.0)
        raise ConfigurationError(
            f"placement: the model has no layer {layer!r}; nearest: {', '.join(map(repr, near)) or 'none'}. "
            "csd-emu plan --placement lists them all"
        )
    return names.index(layer)

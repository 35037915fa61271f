"""The shape of what a model takes of one record; of an image: channels, height, width."""

from __future__ import annotations

import re

from firmware_agent.common.errors import ConfigurationError

Shape = tuple[int, ...]


def parse_shape(text: str) -> Shape:
    """Return the shape that ``CxHxW`` names, for example ``3x224x224``.

    Raises:
        ConfigurationError: it names none.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", text)
    if match is None:
        raise ConfigurationError(f"{text!r} is no shape of images; write channels, height and width as in 3x224x224")
    channels, height, width = map(int, match.groups())
    return channels, height, width

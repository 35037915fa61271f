"""Which tuner a job's `communication` names."""

from __future__ import annotations

from typing import Literal

from csd_emu.communication.blocks import BLOCK_BYTES
from firmware_agent.send_queue import Sending
from host.communication.base import FixedSending, Tuner
from host.communication.settings import DEFAULT

Choice = Literal["fifo", "priority", "search", "autobyte"]


def make_tuner(choice: Choice, first: Sending = DEFAULT, seed: int = 0, block_bytes: int = BLOCK_BYTES) -> Tuner:
    """Return the tuner; what only one of them needs is imported when it is made.

    Args:
        choice: how slices are sent, as a job file says it.
        first: the setting that the run begins with; `fifo` has none.
        seed: of a search's random points.
        block_bytes: the host steps ranges of so many bytes.

    Raises:
        ConfigurationError: a tuner cannot begin with `first`.
    """
    if choice == "fifo":
        return FixedSending(Sending())
    if choice == "priority":
        return FixedSending(first)
    if choice == "search":
        from host.communication.search import StaticSearch

        return StaticSearch(first, seed)
    from host.communication.autobyte import AutoByte
    from host.communication.predictor import default_predictor

    return AutoByte(first, default_predictor(), block_bytes=block_bytes)

"""What a round of training in the drive did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from firmware_agent.common.clients.client_program import ClientReply
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.slices import Array


class LocalPass(NamedTuple):
    """What a round did.

    Attributes:
        samples, steps, read_bytes: records, repetitions counted, batches of them, and their bytes.
        loss: mean over the samples seen, 0 if there were none; or what a client program says.
        step_seconds: of steps whose records the host named.
        reply: what a client program returned; None of the drive's own loop.
        state: what the program keeps, by names on the wire; a copy goes to the host, so that a run can be resumed.
    """

    samples: int
    steps: int
    loss: float
    read_bytes: int
    step_seconds: Sequence[PhaseSeconds] = ()
    reply: ClientReply | None = None
    state: Mapping[str, Array] = {}

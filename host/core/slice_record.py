"""Records of slices that crossed, and of changes of how they are sent."""

from __future__ import annotations

import msgspec


class SliceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of a step whose slices overlapped computing; a line of ``slices.jsonl``.

    Seconds are the host's monotonic clock. Those that a drive saw of its own slices are put on it by the least delay
    with which its messages came, so they are early by at least the link's latency.

    Attributes:
        step: whose gradients these are, or whose forward pass these weights are for.
        device: the drive.
        direction: ``push`` to the host, ``pull`` from it.
        tensor: its name.
        offset: of the first byte in it.
        size_bytes: how many.
        ready_seconds: its bytes were there, and waited.
        begin_seconds: it left the send queue.
        end_seconds: the other side had read it: of a pull, when the host was told so.
    """

    step: int
    device: str
    direction: str
    tensor: str
    offset: int
    size_bytes: int
    ready_seconds: float
    begin_seconds: float
    end_seconds: float


class TransferChange(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to send.

    Attributes:
        step: the first that has it.
        slice_bytes, credit_bytes: of it; None for whole tensors, and for no limit.
        reason: for people.
        gain: log of the step's expected seconds without it over those with it; None if nobody knew.
        clock: of the steps that the tuner learnt from, joined by ``+``.
    """

    step: int
    slice_bytes: int | None
    credit_bytes: int | None
    reason: str
    gain: float | None = None
    clock: str = ""

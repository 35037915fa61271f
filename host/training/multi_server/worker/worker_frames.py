"""Frames between a host and its worker: msgspec structs in msgpack, then bytes, over a Unix socket."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.slices import Array
from host.training.multi_server.store.store_client import decoded

# Sums cross in the precision of what is summed: whole numbers as float64.
SINGLE, DOUBLE = np.dtype("<f4"), np.dtype("<f8")
MAX_HEADER_BYTES = 64 << 20
_LENGTH = struct.Struct("<Q")

Count = Annotated[int, Meta(ge=0)]


class StateTurn(msgspec.Struct, frozen=True, tag=True):
    """Host to worker: take a turn. What the server says is in `meta`; its sums follow, single before double.

    Attributes:
        step, turn, stage: where the server stands.
        meta: for all other servers.
        singles, doubles: how many elements it adds up, float32 and float64.
    """

    step: Count
    turn: Count
    stage: Count
    meta: bytes = b""
    singles: Count = 0
    doubles: Count = 0


class State(msgspec.Struct, frozen=True, tag=True):
    """Host to worker: the training's state, of so many bytes, follows."""

    size_bytes: Count


class GiveState(msgspec.Struct, frozen=True, tag=True):
    """Worker to host: another server is behind; give the training's state."""


class TakeState(msgspec.Struct, frozen=True, tag=True):
    """Worker to host: the state of `server`, which is further, follows, of so many bytes."""

    server: str
    size_bytes: Count


class Taken(msgspec.Struct, frozen=True, tag=True):
    """Worker to host: the turn is over.

    Attributes:
        metas: server -> what it said, of those who took part, in the order of the servers file.
        singles, doubles: elements of the sums, which follow.
    """

    metas: dict[str, bytes]
    singles: Count = 0
    doubles: Count = 0


FromHost = StateTurn | State
FromWorker = GiveState | TakeState | Taken
_FROM_HOST: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)
_FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
LENGTH_BYTES = _LENGTH.size


def encode(frame: FromHost | FromWorker) -> bytes:
    """Return a frame's header: its length, then the frame. What follows it is written as it is."""
    content = msgspec.msgpack.encode(frame)
    return _LENGTH.pack(len(content)) + content


def header_bytes(prefix: bytes) -> int:
    """Return how long the frame is that begins with these `LENGTH_BYTES`.

    Raises:
        ProtocolError: it is too long to be one.
    """
    (size,) = _LENGTH.unpack(prefix)
    if size > MAX_HEADER_BYTES:
        raise ProtocolError(f"a frame of {size} bytes between host and worker; the most are {MAX_HEADER_BYTES}")
    return int(size)


def from_host(content: bytes) -> FromHost:
    """Return what the host said.

    Raises:
        ProtocolError: it is none of its frames.
    """
    return decoded(_FROM_HOST, content, "the host said what no worker knows", "; do both run the same csd-emu?")


def from_worker(content: bytes) -> FromWorker:
    """Return what the worker said.

    Raises:
        ProtocolError: it is none of its frames.
    """
    return decoded(_FROM_WORKER, content, "the worker said what no host knows", "; do both run the same csd-emu?")


def payload_bytes(frame: FromHost | FromWorker) -> int:
    """Return how many bytes follow a frame."""
    if isinstance(frame, StateTurn | Taken):
        return frame.singles * SINGLE.itemsize + frame.doubles * DOUBLE.itemsize
    return frame.size_bytes if isinstance(frame, State | TakeState) else 0


def split_sums(payload: Array, singles: int) -> tuple[Array, Array]:
    """Return the float32 and the float64 elements of a payload of bytes."""
    edge = singles * SINGLE.itemsize
    # The doubles may lie at any multiple of four bytes, which torch would not read.
    return payload[:edge].view(SINGLE), payload[edge:].copy().view(DOUBLE)


def join_sums(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Return all elements of float32 arrays as one vector, and those of all others, as float64, as another."""
    single = [array.reshape(-1) for array in arrays if array.dtype == SINGLE]
    double = [array.reshape(-1).astype(DOUBLE) for array in arrays if array.dtype != SINGLE]
    return (
        np.concatenate(single) if single else np.empty(0, SINGLE),
        np.concatenate(double) if double else np.empty(0, DOUBLE),
    )

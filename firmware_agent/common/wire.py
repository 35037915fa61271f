"""Bytes of the frames that cross between host and drive: msgpack with strict types, never pickle.

One bidirectional gRPC stream per device carries them. The drive speaks first (`Hello`); the host answers with `Welcome`
or ends the stream with PERMISSION_DENIED, then sends tasks. Tensors cross as `Slice` frames, keyed by (tensor, offset),
so that the slice size may change between any two steps. No frame can carry a training record.

In a job with `overlap` slices cross both ways while the drive computes: the host announces a step (`Tensors`, `Step`)
before its weights are there, sends each as soon as it has it, and may announce one step more before this one is over.
Whoever has read a slice off the stream says so (`Received`); then the sender's credit for it comes back. What of an
announced step has not left yet may still be sent by other settings (`Resend`).

In a job with a `cut` the drive has the front of the model. Within a step it sends what crosses the cut (`Activations`
and slices); the host answers with the gradients of it (`ActivationGradients` and slices).

A gRPC message is one frame, or an array of small ones: every message costs both ends a wake-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_FRAME_BYTES, Frame
from firmware_agent.common.frames.measure_frames import Measure, Measured, Probed, ProbeRead, ProbeSend
from firmware_agent.common.frames.session_frames import (
    Disturb,
    Disturbed,
    Exchange,
    Failed,
    Hello,
    Job,
    Ready,
    Received,
    Sabotage,
    Sabotaged,
    Slice,
    Tensors,
    Train,
    Trained,
    Welcome,
)
from firmware_agent.common.frames.step_frames import (
    ActivationGradients,
    Activations,
    Reduce,
    Reduced,
    Resend,
    Step,
    Stepped,
    Timed,
)

PROTOCOL_VERSION = 12
SERVICE_METHOD = "/csd.v1.Host/Session"
HOST_NAME = "csd-host"
# Messages of several frames: at most so many frames, and so many bytes of them.
_PACK_FRAMES, _PACK_BYTES = 1024, 64 << 10
# The head of such a message.
_HEAD_BYTES = 3
# How every slice begins: the only frame that is long and has no list.
_SLICE_BEGINS = b"\x86\xa4type\xa5Slice"
# Of what goes by turns with slices: nobody reads a message before all of it is there, and an acknowledgement that waits
# for a slice keeps the peer from sending.
_JOIN_BYTES = 4 << 10


AnyFrame = (
    Hello | Welcome | Job | Ready | Tensors | Slice | Received | Train | Trained | Step | Resend | Timed | Stepped
    | Reduce | Reduced | Activations | ActivationGradients | Measure | Measured
    | Exchange | Disturb | Disturbed | ProbeRead | ProbeSend | Probed | Sabotage | Sabotaged | Failed
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_decoder = msgspec.msgpack.Decoder(AnyFrame | Annotated[list[AnyFrame], Meta(min_length=1, max_length=_PACK_FRAMES)])


def encode(frame: Frame) -> bytes:
    """Return the frame's bytes.

    Raises:
        ProtocolError: the frame is larger than `MAX_FRAME_BYTES`.
    """
    data = _encoder.encode(frame)
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"{type(frame).__name__} has {len(data)} bytes, more than the wire's {MAX_FRAME_BYTES}")
    return data


def join(first: bytes, take: Callable[[], bytes | None]) -> list[bytes]:
    """Return messages of a frame and of those that wait behind it: small ones together, any other by itself.

    Args:
        first: the frame.
        take: returns the next one, None if none waits; asked until a few KiB are there.
    """
    frames, size = [first], len(first)
    while size < _JOIN_BYTES and (frame := take()) is not None:
        frames.append(frame)
        size += len(frame)
    return list(pack(frames, _JOIN_BYTES))


def pack(frames: Iterable[bytes], most_bytes: int = _PACK_BYTES) -> Iterator[bytes]:
    """Yield encoded frames as messages, in order: small neighbours together, a large one as it is.

    Args:
        frames: encoded.
        most_bytes: of those that go together.
    """
    waiting: list[bytes] = []
    size = 0
    for data in frames:
        if waiting and (size + len(data) > most_bytes or len(waiting) == _PACK_FRAMES):
            yield _joined(waiting)
            waiting, size = [], 0
        waiting.append(data)
        size += len(data)
    if waiting:
        yield _joined(waiting)


def decode(message: bytes) -> AnyFrame:
    """Return the one frame in `message`.

    Raises:
        ProtocolError: as `unpack`; or there are several.
    """
    first, *others = unpack(message)
    if others:
        raise ProtocolError(f"{1 + len(others)} frames came in where one was due")
    return first


def unpack(message: bytes) -> list[AnyFrame]:
    """Return the frames in `message`, at least one.

    Raises:
        ProtocolError: the bytes are no frames: too long, malformed, unknown, or a field is out of range.
    """
    if len(message) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a message of {len(message)} bytes came in, the wire allows {MAX_FRAME_BYTES}")
    try:
        if len(message) > _PACK_BYTES and not message.startswith(_SLICE_BEGINS):
            _check_long(message)
        frames: AnyFrame | list[AnyFrame] = _decoder.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a malformed frame came in: {error}") from error
    return frames if isinstance(frames, list) else [frames]


def _check_long(message: bytes) -> None:
    """Refuse what would cost far more than its size: many long frames in one message, or a frame that repeats a field.

    All lists of a frame are bounded, but a field that comes again replaces the one before, which was decoded too.

    Raises:
        ProtocolError: see above.
        msgspec.MsgspecError: it is malformed.
    """
    if message[0] >> 4 == 0x9 or message[0] in (0xDC, 0xDD):
        if len(message) > _HEAD_BYTES + _PACK_BYTES:
            raise ProtocolError(f"a message of several frames has {len(message)} bytes, at most {_PACK_BYTES} may join")
        return
    fields = _fields.decode(message)
    size = 1 + sum(1 + len(name.encode()) + len(memoryview(value)) for name, value in fields.items())
    if size != len(message):
        raise ProtocolError(f"a frame of {len(message)} bytes repeats a field, or is not packed as the wire has it")


def _joined(frames: list[bytes]) -> bytes:
    """Return frames as a msgpack array, a single one as it is."""
    if len(frames) == 1:
        return frames[0]
    return b"\xdc" + len(frames).to_bytes(2, "big") + b"".join(frames)

"""The frames that cross between host and drive: msgpack with strict types, never pickle.

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
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from firmware_agent.errors import ProtocolError
from firmware_agent.folded_traceback import MAX_TRACEBACK_BYTES

PROTOCOL_VERSION = 9
SERVICE_METHOD = "/csd.v1.Host/Session"
MAX_SLICE_BYTES = 1 << 20
MAX_FRAME_BYTES = MAX_SLICE_BYTES + (64 << 10)
HOST_NAME = "csd-host"
# The fact in a hello of a drive that can measure layers; its value is ``yes``.
MEASURES_LAYERS = "measures_layers"
# Records of one step, and values of one `Reduce`: both fit into a frame.
MAX_STEP_RECORDS = 1 << 16
MAX_REDUCE_BYTES = 1 << 20
# Steps whose seconds one `Measured` frame can carry, and what a measurement does before it counts.
MAX_RAW_STEPS = 4096
WARM_UP_STEPS = 5
# Layers whose seconds one `Measured` frame can carry.
MAX_LAYERS = 2048
# Slices of one step that are told of: they fit into a frame.
MAX_TIMED_SLICES = 1 << 14
# Tensors of one exchange, and dimensions of one of them. No dimension is longer than the largest exchange has bytes.
MAX_TENSORS, MAX_DIMENSIONS = 1 << 14, 8
MAX_EXCHANGE_BYTES = 8 << 30
# What a hello may tell of a drive: so many facts of so many characters each.
MAX_FACTS, MAX_FACT_CHARACTERS = 64, 1024
# Messages of several frames: at most so many frames, and so many bytes of them.
_PACK_FRAMES, _PACK_BYTES = 1024, 64 << 10
# The head of such a message.
_HEAD_BYTES = 3
# How every slice begins: the only frame that is long and has no list.
_SLICE_BEGINS = b"\x86\xa4type\xa5Slice"
# Of what goes by turns with slices: nobody reads a message before all of it is there, and an acknowledgement that waits
# for a slice keeps the peer from sending.
_JOIN_BYTES = 4 << 10

Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=16 << 10)]
Shape = Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_EXCHANGE_BYTES)], ...], Meta(max_length=MAX_DIMENSIONS)]
Fact = Annotated[str, Meta(max_length=MAX_FACT_CHARACTERS)]


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Anything that crosses the wire."""


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name, little-endian NumPy dtype and shape of one tensor of an exchange."""

    name: Name
    dtype: Annotated[str, Meta(pattern=r"^(\|[biu]1|<[iuf][248])\Z")]
    shape: Shape


class PhaseSeconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of the device's own clock in which a task was always runnable, per phase."""

    forward: Seconds = 0.0
    backward: Seconds = 0.0
    update: Seconds = 0.0
    encode: Seconds = 0.0

    @property
    def total(self) -> float:
        """Sum over the phases, in seconds."""
        return self.forward + self.backward + self.update + self.encode


class Holding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a drive tells of records that it holds in place: nothing of any single one.

    Attributes:
        kind: of the files, for people.
        shape: (channels, height, width) of an image.
        dtype: of its values, NumPy's little-endian name.
        classes: how many there are, named ones or up to the largest label.
        class_names: by number; empty if they have none.
    """

    kind: Name
    shape: Shape
    dtype: Annotated[str, Meta(pattern=r"^(\|[biu]1|<[iuf][248])\Z")]
    classes: Positive
    class_names: Annotated[list[Name], Meta(max_length=1024)] = []


class Hello(Frame, frozen=True):
    """Drive: who I am and what I hold; my shard's hashes are checked.

    `instance` is drawn anew whenever an agent starts: it tells a redial from a twin of the same incarnation. `holding`
    is of records that lie in the drive in place; without it they are a shard that the host wrote.
    """

    protocol: Positive
    device: Name
    incarnation: Count
    clock: Name
    manifest_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    samples: Positive
    facts: Annotated[dict[Name, Fact], Meta(max_length=MAX_FACTS)]
    instance: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
    holding: Holding | None = None


class Welcome(Frame, frozen=True):
    """Host: accepted."""


class Job(Frame, frozen=True):
    """Host: build this model and its optimiser. `source` is the text of the user's model file, if there is one.

    `proximal` is mu of the term mu/2 ||w - w_0||^2 that is added to the loss, w_0 being the weights that were sent.
    `batch_norm` and `precision` are of synchronous steps: statistics of the device's own records, of all participants'
    together, or the running ones; and the dtype in which the model computes. With `overlap` slices cross while it does;
    whoever waits for the other side longer than `deadline_seconds` then ends the session. `cut` names the layer that
    the host's part of the model begins with (see `firmware_agent.cutting`); None for the whole model in the drive.
    """

    model: Name
    arguments: Annotated[dict[Name, int | float | str | bool], Meta(max_length=1 << 10)]
    source: Annotated[str, Meta(max_length=1 << 19)] | None
    image_scale: float
    seed: Count
    learning_rate: Annotated[float, Meta(gt=0)]
    momentum: Annotated[float, Meta(ge=0, lt=1)]
    batch_size: Positive
    proximal: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    batch_norm: Literal["device", "synchronised", "frozen"] = "device"
    precision: Literal["float32", "float64"] = "float32"
    overlap: bool = False
    deadline_seconds: Annotated[float, Meta(gt=0, le=1e6)] = 600.0
    cut: Annotated[str, Meta(max_length=256)] | None = None


class Ready(Frame, frozen=True):
    """Drive: the job's model is built."""

    parameters: Count


class Tensors(Frame, frozen=True):
    """Either side: slices of these tensors follow, under this exchange number."""

    exchange: Count
    specs: Annotated[list[TensorSpec], Meta(max_length=MAX_TENSORS)]


class Slice(Frame, frozen=True):
    """Either side: bytes of one tensor, from `offset` bytes on.

    A decoded slice's `data` are a view of the frame that it came in. `checksum` covers place and data, from end to end
    (`firmware_agent.exchange.slice_checksum`): TLS guards the way, but not the memory at either end of it.
    """

    exchange: Count
    tensor: Name
    offset: Count
    checksum: Annotated[bytes, Meta(min_length=8, max_length=8)]
    data: Annotated[memoryview, Meta(min_length=1, max_length=MAX_SLICE_BYTES)]


class Received(Frame, frozen=True):
    """Either side: I have read so many more bytes of this exchange's slices off the stream, in one slice or several."""

    exchange: Count
    size_bytes: Positive


class Metered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a real drive's own power sensor saw during a task: joules, over so many seconds of its clock."""

    joules: Annotated[float, Meta(ge=0, le=1e12)]
    seconds: Seconds


class Train(Frame, frozen=True):
    """Host: train from the weights just sent, for whole passes over the shard, and send the weights back.

    Without a pass the weights go back as they came: a round that only exchanges.
    """

    round: Positive
    epochs: Count


class Trained(Frame, frozen=True):
    """Drive: done; the tensors came before this frame.

    `loss` is the mean over the samples seen, 0 without any; `peak_memory_bytes` the most that the agent's process had
    in RAM, 0 if not read; `metered` is there if the drive has a power sensor.
    """

    round: Positive
    samples: Count
    steps: Count
    loss: float
    seconds: PhaseSeconds
    read_bytes: Count
    peak_memory_bytes: Count = 0
    metered: Metered | None = None


class SendingSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a step's gradients are sent: the fields of `firmware_agent.send_queue.Sending`, on the wire."""

    schedule: Literal["fifo", "priority"]
    slice_bytes: Positive | None = None
    credit_bytes: Positive | None = None


class Step(Frame, frozen=True):
    """Host: at the weights just sent, compute the gradient of the mean loss over these records, and send it back.

    Attributes:
        step: its number in the run, from 1; with the job's seed and the device it decides every random draw in it.
        records: indices into the shard, little-endian uint32, at least one.
        micro_batch: at most so many records are computed at a time; the gradients of more are accumulated.
        sending: in which order and pieces they are sent, and how much may be under way; None: whole tensors, in the
            model's order. Without `Job.overlap` all leave after the backward pass, and credit has no meaning.
    """

    step: Positive
    records: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_STEP_RECORDS)]
    micro_batch: Positive
    sending: SendingSpec | None = None


class Resend(Frame, frozen=True):
    """Host, of a step that it has announced and that overlaps: what of its gradients is still here goes by these."""

    step: Positive
    sending: SendingSpec


class LeftSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A slice of a gradient: which tensor, by its place among those announced; when it was ready, and when it left.

    Seconds are of the drive's own monotonic clock.
    """

    tensor: Count
    offset: Count
    size_bytes: Positive
    ready_seconds: Seconds
    begin_seconds: Seconds


class TensorTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """When a step came to a tensor, in seconds of computing since its beginning: waits are left out.

    `used_seconds` is of its first use in the forward pass, `ready_seconds` of its complete gradient; 0 if neither was
    seen.
    """

    tensor: Count
    used_seconds: Seconds
    ready_seconds: Seconds


class Timed(Frame, frozen=True):
    """Drive, of a step whose slices overlapped it, before its report: what happened when.

    `now_seconds` is the drive's monotonic clock as this leaves, `end_seconds` when the step had been computed, in the
    seconds of `TensorTimes`. Slices beyond `MAX_TIMED_SLICES` are left out. `resent` says whether all gradients left by
    the settings of a `Resend`.
    """

    step: Positive
    now_seconds: Seconds
    end_seconds: Seconds
    slices: Annotated[list[LeftSlice], Meta(max_length=MAX_TIMED_SLICES)]
    tensors: Annotated[list[TensorTimes], Meta(max_length=1 << 14)]
    resent: bool = False


class Stepped(Frame, frozen=True):
    """Drive: the gradient, and the buffers as the step left them, came before this frame.

    `loss` is the mean over the step's records; `seconds` have no update: the host does it.
    """

    step: Positive
    samples: Positive
    loss: float
    seconds: PhaseSeconds
    read_bytes: Count
    peak_memory_bytes: Count = 0
    metered: Metered | None = None


class Reduce(Frame, frozen=True):
    """Drive, within a step: values to be added up over all participants, little-endian float64.

    `index` counts the exchanges of the step, in the order in which the model comes to them.
    """

    step: Positive
    index: Count
    values: Annotated[bytes, Meta(min_length=8, max_length=MAX_REDUCE_BYTES)]


class Reduced(Frame, frozen=True):
    """Host: the sum over all participants that are left, in participant order."""

    step: Positive
    index: Count
    values: Annotated[bytes, Meta(min_length=8, max_length=MAX_REDUCE_BYTES)]


class Activations(Frame, frozen=True):
    """Drive, within a step with a cut: what crosses it of one part of the step's records; its slices follow.

    Attributes:
        step: under whose number the slices come.
        part: counts the parts that the records are computed in, from 0.
        specs: the crossing tensors by their places, then labels, and the generator's state if the front has drawn from
            it (see `firmware_agent.crossing`).
    """

    step: Positive
    part: Count
    specs: Annotated[list[TensorSpec], Meta(max_length=1 << 10)]


class ActivationGradients(Frame, frozen=True):
    """Host: the gradients, of the mean loss over a part's records, of what crossed; slices follow, if any is needed.

    `loss` is that mean. With an `error` there are none: the host's part has failed, and with it the drive's step.
    """

    step: Positive
    part: Count
    loss: float
    specs: Annotated[list[TensorSpec], Meta(max_length=1 << 10)]
    error: Text = ""


class LayerTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What a layer (`firmware_agent.layer_costs`) takes of a step; the name of the model's own tensors is empty."""

    name: Annotated[str, Meta(max_length=256)]
    forward_seconds: Seconds
    backward_seconds: Seconds


class LayerTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a model's layers by the device's own clock, as `firmware_agent.layer_seconds` has them.

    Attributes:
        layers: in forward order; they add up to the forward and backward seconds of the median step, nobody watching.
        watched: forward and backward seconds of the passes in which they were told apart, watching included.
        passes: how many those were; seconds are medians over them.
    """

    layers: Annotated[list[LayerTime], Meta(min_length=1, max_length=MAX_LAYERS)]
    watched: PhaseSeconds
    passes: Positive


# Fields that have their defaults are left out of these two: an agent of before does not know the last ones.
class Measure(Frame, frozen=True, omit_defaults=True):
    """Host: run the training loop at this batch size until that many device seconds of it have passed.

    With `bare`, a plain torch loop in a process of its own runs instead, and of the fields below only `warm_up_steps`
    counts.

    Attributes:
        batch_size: samples per step.
        device_seconds: the loop ends with the first step after so many seconds.
        bare: see above.
        steps: also at most so many steps; the answer then carries the seconds of each, and of one encoding.
        warm_up_steps: taken first and not counted; they too end after `device_seconds`, with one step at least.
        warm_up_batch_size: samples per step of the warm-up; None for `batch_size`.
        restore: put the weights back as they were afterwards; without, the memory of a second copy is saved.
        layers: also the seconds of each layer, if `steps` is given; asked only of a drive whose hello has
            `MEASURES_LAYERS` among its facts.
    """

    batch_size: Positive
    device_seconds: Annotated[float, Meta(gt=0, le=3600)]
    bare: bool = False
    steps: Annotated[int, Meta(ge=1, le=MAX_RAW_STEPS)] | None = None
    warm_up_steps: Annotated[int, Meta(ge=0, le=1000)] = WARM_UP_STEPS
    warm_up_batch_size: Positive | None = None
    restore: bool = True
    layers: bool = False


class Measured(Frame, frozen=True, omit_defaults=True):
    """Drive: what `Measure` saw.

    Attributes:
        samples, steps: taken in the loop, without the warm-up.
        seconds: of the loop, per phase.
        elapsed_seconds: the whole loop by the device's clock, phases and all between.
        step_seconds: of each step, if `Measure.steps` was given.
        encode_seconds: copying the weights out of the model once, if `Measure.steps` was given.
        peak_memory_bytes: the most memory that the agent's process had in RAM; 0 if not read.
        peak_memory_source: ``VmHWM``, reset before the warm-up, or ``ru_maxrss``, of the process's whole life.
        monitor_seconds: what watching one synchronous step costs, if `Measure.steps` was given.
        layers: if they were asked for, and the model's layers can be told apart.
    """

    samples: Positive
    steps: Positive
    seconds: PhaseSeconds
    elapsed_seconds: Seconds
    step_seconds: Annotated[list[PhaseSeconds], Meta(max_length=MAX_RAW_STEPS)] = []
    encode_seconds: Seconds = 0.0
    peak_memory_bytes: Count = 0
    peak_memory_source: Annotated[str, Meta(max_length=32)] = ""
    monitor_seconds: Seconds = 0.0
    layers: LayerTimes | None = None


class Disturb(Frame, frozen=True):
    """Host: run a competing task of this cgroup weight (the trainer has 100) until told otherwise; 0 ends it."""

    weight: Annotated[int, Meta(ge=0, le=10_000)]


class Disturbed(Frame, frozen=True):
    """Drive: the competing task runs at this weight."""

    weight: Count


class ProbeRead(Frame, frozen=True):
    """Host: read so many bytes from your namespace, under this limit (0: none) of the drive's own `io.max`."""

    size_bytes: Positive
    limit_bytes_per_second: Count


class ProbeSend(Frame, frozen=True):
    """Host: send so many bytes to the sink at `address` (``host:port``), under this limit (0: none) of your `tbf`."""

    size_bytes: Positive
    limit_bytes_per_second: Count
    address: Name


class Probed(Frame, frozen=True):
    """Drive: what a probe saw: bytes as its throttle counts them (see `firmware_agent.probe`), monotonic seconds."""

    counted_bytes: Count
    seconds: Seconds


class Sabotage(Frame, frozen=True):
    """Host: harm yourself, for an experiment.

    ``corrupt``: damage the next slice that you send; ``fill``: fill your disk; ``clear``: give it back.
    """

    harm: Literal["corrupt", "fill", "clear"]


class Sabotaged(Frame, frozen=True):
    """Drive: it is done, or will be with the next slice; `filled_bytes` is how much of the disk is taken."""

    filled_bytes: Count


class Failed(Frame, frozen=True):
    """Drive: a task failed; the session goes on.

    `exception` is the type of what was raised, `error` says what it was. If it was `user` code that failed, the model
    or the data, `traceback` is its own (see `firmware_agent.folded_traceback`).
    """

    task: Name
    error: Text
    exception: Annotated[str, Meta(max_length=256)] = ""
    traceback: Annotated[str, Meta(max_length=MAX_TRACEBACK_BYTES)] = ""
    user: bool = False


AnyFrame = (
    Hello | Welcome | Job | Ready | Tensors | Slice | Received | Train | Trained | Step | Resend | Timed | Stepped
    | Reduce | Reduced | Activations | ActivationGradients | Measure | Measured
    | Disturb | Disturbed | ProbeRead | ProbeSend | Probed | Sabotage | Sabotaged | Failed
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

"""Frames of a session: who a drive is, its job, its tensors, federated training, faults."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from firmware_agent.common.folded_traceback import MAX_TRACEBACK_BYTES
from firmware_agent.common.frames.frame_fields import (
    MAX_FACTS,
    MAX_RAW_STEPS,
    MAX_SLICE_BYTES,
    MAX_TENSORS,
    Count,
    Fact,
    Frame,
    Metered,
    Name,
    PhaseSeconds,
    Positive,
    StepRecords,
    TensorSpec,
    Text,
)
from firmware_agent.common.health.drive_health import DriveHealth


class Holding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a drive tells of records that it holds in place: nothing of any single one.

    Attributes:
        kind: of the files, for people.
        fields: name, dtype and shape of each field of one record.
        classes: how many there are, named ones or up to the largest label; 0 of records without class numbers.
        class_names: by number; empty if they have none.
    """

    kind: Name
    fields: Annotated[list[TensorSpec], Meta(min_length=1, max_length=MAX_FACTS)]
    classes: Count
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


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Code of the job's, as `firmware_agent.common.shipped_code.ShippedCode`."""

    name: Name
    source: Annotated[str, Meta(max_length=1 << 19)] | None = None
    arguments: Annotated[dict[Name, int | float | str | bool | list[float]], Meta(max_length=1 << 10)] = {}


class Job(Frame, frozen=True):
    """Host: build this model and its optimiser. `source` is the text of the user's model file, if there is one.

    `input_fields` of a record are what the model takes, multiplied by `input_scale`, of batches that `augment`, in this
    order, and `collate` have made; see `firmware_agent.common.losses.objective`.
    `proximal` is mu of the term mu/2 ||w - w_0||^2 that is added to the loss, w_0 being the weights that were sent.
    `batch_norm` and `precision` are of synchronous steps: statistics of the device's own records, of all participants'
    together, or the running ones; and the dtype in which the model computes. With `overlap` slices cross while it does;
    whoever waits for the other side longer than `deadline_seconds` then ends the session. `cut` names the layer that
    the host's part of the model begins with (see `firmware_agent.common.split.cutting`); None for the whole model in
    the drive. `client` trains in rounds in place of the drive's own loop, and `returns` these tensors, with numbers of
    the names in `metrics` (see `firmware_agent.common.clients`); `exchanges` are those of an exchange within a round.
    `optimiser` is None for SGD with `learning_rate` and `momentum`, else a class of `torch.optim` or of the user's own;
    the norm of a step's gradient is cut to `clip_norm`. Both are of local training. Parameters whose names match a
    pattern of `freeze` are not trained.
    """

    model: Name
    arguments: Annotated[dict[Name, int | float | str | bool], Meta(max_length=1 << 10)]
    source: Annotated[str, Meta(max_length=1 << 19)] | None
    input_scale: float
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
    input_fields: Annotated[list[Name], Meta(min_length=1, max_length=64)] = msgspec.field(
        default_factory=lambda: ["image"]
    )
    loss: Code = Code("cross_entropy")
    client: Code | None = None
    returns: Annotated[list[TensorSpec], Meta(max_length=MAX_TENSORS)] = msgspec.field(default_factory=list)
    metrics: Annotated[list[Name], Meta(max_length=MAX_FACTS)] = msgspec.field(default_factory=list)
    exchanges: Annotated[list[TensorSpec], Meta(max_length=MAX_TENSORS)] = msgspec.field(default_factory=list)
    optimiser: Code | None = None
    clip_norm: Annotated[float, Meta(gt=0)] | None = None
    freeze: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=1 << 10)] = msgspec.field(
        default_factory=list
    )
    collate: Code | None = None
    augment: Annotated[list[Code], Meta(max_length=16)] = msgspec.field(default_factory=list)


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
    (`firmware_agent.common.slices.slice_checksum`): TLS guards the way, but not the memory at either end of it.
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


# Of these two, fields that have their defaults are left out: an agent of before does not know the last ones.
class Train(Frame, frozen=True, omit_defaults=True):
    """Host: train from the weights just sent, for whole passes over the shard, and send the weights back.

    Without a pass the weights go back as they came: a round that only exchanges. `batches` are steps in place of the
    passes: indices into the shard, little-endian uint32, of the records of each. `config` is what the strategy says to
    this drive; without a client program all but its ``batch_size`` is passed over. `learning_rate` is
    the round's, in place of the job's.
    """

    round: Positive
    epochs: Count
    batches: Annotated[list[StepRecords], Meta(max_length=MAX_RAW_STEPS)] | None = None
    config: Annotated[dict[Name, int | float | Text | bool], Meta(max_length=MAX_FACTS)] = msgspec.field(
        default_factory=dict
    )
    learning_rate: Annotated[float, Meta(ge=0)] | None = None


class Trained(Frame, frozen=True, omit_defaults=True):
    """Drive: done; the tensors came before this frame.

    `loss` is the mean over the samples seen, 0 without any; `peak_memory_bytes` the most that the agent's process had
    in RAM, 0 if not read; `metered` is there if the drive has a power sensor. `step_seconds` are those of each of
    `Train.batches`, and `seconds` then what came after them. `metrics` are a client program's. `health` is there if the
    drive's own logs can be read.
    """

    round: Positive
    samples: Count
    steps: Count
    loss: float
    seconds: PhaseSeconds
    read_bytes: Count
    peak_memory_bytes: Count = 0
    metered: Metered | None = None
    step_seconds: Annotated[list[PhaseSeconds], Meta(max_length=MAX_RAW_STEPS)] = msgspec.field(default_factory=list)
    metrics: Annotated[dict[Name, float], Meta(max_length=MAX_FACTS)] = msgspec.field(default_factory=dict)
    health: DriveHealth | None = None


class Exchange(Frame, frozen=True):
    """Either side: the tensors just sent are a client program's in this exchange of a round, or the answer to it."""

    round: Positive
    number: Positive


class Disturb(Frame, frozen=True):
    """Host: run a competing task of this cgroup weight (the trainer has 100) until told otherwise; 0 ends it."""

    weight: Annotated[int, Meta(ge=0, le=10_000)]


class Disturbed(Frame, frozen=True):
    """Drive: the competing task runs at this weight."""

    weight: Count


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
    or the data, `traceback` is its own (see `firmware_agent.common.folded_traceback`).
    """

    task: Name
    error: Text
    exception: Annotated[str, Meta(max_length=256)] = ""
    traceback: Annotated[str, Meta(max_length=MAX_TRACEBACK_BYTES)] = ""
    user: bool = False

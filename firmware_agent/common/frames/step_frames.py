"""Frames of synchronous steps: gradients, sums within a step, what crosses the cut of a model."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from firmware_agent.common.frames.frame_fields import (
    MAX_REDUCE_BYTES,
    MAX_STEP_RECORDS,
    MAX_TIMED_SLICES,
    Count,
    Frame,
    Metered,
    PhaseSeconds,
    Positive,
    Seconds,
    StepRecords,
    TensorSpec,
    Text,
)
from firmware_agent.common.health.drive_health import DriveHealth

# What a step that is only timed computes: all of it, or its forward pass.
Timing = Literal["whole", "forward"]


class SendingSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a step's gradients are sent: the fields of `send_queue.TransferSettings`, on the wire."""

    schedule: Literal["fifo", "priority"]
    slice_bytes: Positive | None = None
    credit_bytes: Positive | None = None


class OwnRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records that the drive draws itself, from those that lie there in place: the host counts them, and no more.

    Attributes:
        epoch: of the run, from 1; with the job's seed and the drive it decides the order in which the drive has them.
        runs: begin and count of each stretch of that order.
    """

    epoch: Positive
    runs: Annotated[list[tuple[Count, Positive]], Meta(min_length=1, max_length=MAX_STEP_RECORDS)]


class Step(Frame, frozen=True):
    """Host: at the weights just sent, compute the gradient of the mean loss over these records, and send it back.

    Attributes:
        step: its number in the run, from 1; with the job's seed and the device it decides every random draw in it.
        records: indices into the shard, little-endian uint32, at least one; or what the drive draws of its own.
        micro_batch: at most so many records are computed at a time; the gradients of more are accumulated.
        sending: in which order and pieces they are sent, and how much may be under way; None: whole tensors, in the
            model's order. Without `Job.overlap` all leave after the backward pass, and credit has no meaning.
        timed: only seconds count: nothing returns but the report, and if no weights were announced for the step, it is
            taken at those that are there. Of ``forward`` the drive computes the forward pass alone, with
            statistics of its own and without what crosses a cut.
    """

    step: Positive
    records: StepRecords | OwnRecords
    micro_batch: Positive
    sending: SendingSpec | None = None
    timed: Timing | None = None


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
    `health` is left out where the drive's own logs cannot be read.
    """

    step: Positive
    samples: Positive
    loss: float
    seconds: PhaseSeconds
    read_bytes: Count
    peak_memory_bytes: Count = 0
    metered: Metered | None = None
    health: DriveHealth | msgspec.UnsetType = msgspec.UNSET


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
            it (see `firmware_agent.common.split.activations`).
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

"""Frames of a measurement of step seconds, and of what a throttle lets through."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from firmware_agent.common.frames.frame_fields import (
    MAX_LAYERS,
    MAX_RAW_STEPS,
    WARM_UP_STEPS,
    Count,
    Frame,
    Name,
    PhaseSeconds,
    Positive,
    Seconds,
)


class LayerTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Share of a step that a layer (`layer_costs`) takes; the name of the model's own tensors is empty."""

    name: Annotated[str, Meta(max_length=256)]
    forward_seconds: Seconds
    backward_seconds: Seconds


class LayerTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a model's layers by the device's own clock, as `firmware_agent.common.layer_seconds` has them.

    Attributes:
        layers: in forward order; they add up to the forward and backward seconds of the median step, nobody watching.
        watched: forward and backward seconds of the passes in which they were told apart, watching included.
        passes: how many those were; seconds are medians over them.
    """

    layers: Annotated[list[LayerTime], Meta(min_length=1, max_length=MAX_LAYERS)]
    watched: PhaseSeconds
    passes: Positive


class PhaseMark(IntEnum):
    """Number of a cycle mark: what has just ended there; `START` and `STOP` switch the core model on and off."""

    IDLE = 0
    FORWARD = 1
    BACKWARD = 2
    UPDATE = 3
    ENCODE = 4
    STOP = 14
    START = 15


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
        cycle_steps: then also so many steps, fewer of long ones, and encodings, between cycle marks
            (`firmware_agent.cycle_marks`), for a core model outside; one step more, of `warm_up_batch_size`, warms the
            model's caches first.
        threads: that compute; a drive has one, the machine that holds the drives as many as processors.
    """

    batch_size: Positive
    device_seconds: Annotated[float, Meta(gt=0, le=3600)]
    bare: bool = False
    steps: Annotated[int, Meta(ge=1, le=MAX_RAW_STEPS)] | None = None
    warm_up_steps: Annotated[int, Meta(ge=0, le=1000)] = WARM_UP_STEPS
    warm_up_batch_size: Positive | None = None
    restore: bool = True
    layers: bool = False
    cycle_steps: Annotated[int, Meta(ge=0, le=16)] = 0
    threads: Annotated[int, Meta(ge=1, le=4096)] = 1


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
    step_seconds: Annotated[list[PhaseSeconds], Meta(max_length=MAX_RAW_STEPS)] = msgspec.field(default_factory=list)
    encode_seconds: Seconds = 0.0
    peak_memory_bytes: Count = 0
    peak_memory_source: Annotated[str, Meta(max_length=32)] = ""
    monitor_seconds: Seconds = 0.0
    layers: LayerTimes | None = None


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
    """Drive: bytes that a probe (`throttle_probe`) saw, as its throttle counts them; monotonic seconds."""

    counted_bytes: Count
    seconds: Seconds

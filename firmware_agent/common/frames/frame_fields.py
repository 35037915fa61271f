"""Bounds and types of the fields of frames."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_SLICE_BYTES = 1 << 20
MAX_FRAME_BYTES = MAX_SLICE_BYTES + (64 << 10)
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

Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=16 << 10)]
Shape = Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_EXCHANGE_BYTES)], ...], Meta(max_length=MAX_DIMENSIONS)]
StepRecords = Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_STEP_RECORDS)]
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


class Metered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a real drive's own power sensor saw during a task: joules, over so many seconds of its clock."""

    joules: Annotated[float, Meta(ge=0, le=1e12)]
    seconds: Seconds

"""What devices do in a step, and the interface by which features attach to its exchange."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import CsdError, ModelFailed
from firmware_agent.common.frames.frame_fields import Frame
from firmware_agent.common.frames.step_frames import OwnRecords, Stepped, Timing
from firmware_agent.common.slices import Array, cut_slices
from firmware_agent.common.wire import AnyFrame, encode, pack
from host.fleet.device_session import DeviceSession


def part_sizes(records: int, micro_batch: int) -> tuple[int, ...]:
    """Return how many records a drive computes at a time, one part after the other."""
    return tuple(map(len, np.array_split(np.empty(records, np.uint8), -(-records // micro_batch))))


@dataclass(frozen=True)
class StepWork:
    """What one device does in a step.

    Attributes:
        session: of the device.
        records: indices into its shard; of records that it draws itself, places in its order of the `epoch`.
        micro_batch: at most so many of them at a time.
        timed: whether only seconds count, see `Step`.
        epoch: None for indices.
    """

    session: DeviceSession
    records: npt.NDArray[np.uint32]
    micro_batch: int
    timed: Timing | None = None
    epoch: int | None = None

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.session.device

    @property
    def named(self) -> bytes | OwnRecords:
        """What the device is told of the records; of those that it draws itself, how many from where in its order."""
        if self.epoch is None:
            return self.records.astype("<u4").tobytes()
        stretches = np.split(self.records, np.flatnonzero(np.diff(self.records.astype(np.int64)) != 1) + 1)
        return OwnRecords(self.epoch, [(int(run[0]), len(run)) for run in stretches])

    @property
    def parts(self) -> tuple[int, ...]:
        """How many records it computes at a time, one part after the other."""
        return part_sizes(len(self.records), self.micro_batch)


@dataclass(frozen=True)
class DeviceOutcome:
    """What came of one device's step: its report, or the error that took its place; bytes as they crossed the wire.

    Of these `up_bytes` and `down_bytes` are of extensions' tensors, such as those that cross the cut of a model; of
    overlapping steps without what frames add.
    """

    work: StepWork
    stepped: Stepped | None
    error: CsdError | None
    sent_bytes: int = 0
    received_bytes: int = 0
    up_bytes: int = 0
    down_bytes: int = 0

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.work.device


class StepStage(IntEnum):
    """The order in which a device's frames come within a step."""

    FORWARD = 0
    ACTIVATIONS = 1
    BACKWARD = 2
    REPORT = 3


@dataclass(frozen=True)
class Reply:
    """What answers a device: a frame, and the tensors that it announces, by the names that it gives."""

    announced: Frame
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def messages(self, step: int) -> list[bytes]:
        """Return all of it, encoded."""
        return list(pack(map(encode, (self.announced, *cut_slices(step, self.arrays)))))


Answer = Callable[[], Awaitable[Reply]]
"""Returns what answers a device, when the host has it.

Raises:
    ProtocolError: what the device sent does not belong there.
"""


class DeviceExtension(Protocol):
    """One device's end of an extension, in one step."""

    @property
    def tensors(self) -> Sequence[str]:
        """Names of the tensors that the device has announced; an extension without tensors has none."""

    @property
    def news(self) -> bool:
        """Whether the last frame brought anything that was not there."""

    def stage(self, frame: AnyFrame) -> StepStage | None:
        """Return when a frame is due; None if it is not for this extension."""

    def owed(self, stage: StepStage) -> str:
        """Return what a device has done that sends something of this stage too early, as of a sentence; or nothing."""

    def take(self, frame: AnyFrame) -> Answer | None:
        """Take a frame that is for this extension; return what answers it if the device waits for an answer.

        Raises:
            ProtocolError: the frame does not belong there.
        """


class StepExtension(Protocol):
    """What all devices of one step exchange beside weights and gradients."""

    @property
    def failure(self) -> ModelFailed | None:
        """What failed of the user's model on the host; None while nothing did."""

    def open(self, device: str) -> DeviceExtension:
        """Return what takes a participant's frames."""

    def alone(self, work: StepWork) -> StepExtension:
        """Return the same step for a device that is only watched: nothing of it counts."""

    def leave(self, device: str) -> None:
        """Go on without a device; if it has left already, or never was there, nothing happens."""

    def refuses(self, device: str) -> bool:
        """Whether a device's step has failed because this refused it, of which an event tells."""

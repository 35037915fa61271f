"""Time and memory that a cut saves a drive: those of the layers that move to the host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from csd_emu.profiles.profile import End
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.device_time import StepModel


@dataclass(frozen=True)
class Front:
    """The drives' part of a model, against the whole.

    Attributes:
        forward_share, backward_share: of the whole model's seconds, as measured or by arithmetic.
        encode_share: of the bytes of its gradients.
        spared_bytes: of memory, whatever the batch.
        spared_record_bytes: of memory, for each record of the batch.
        crossing_bytes: of each record, that leave the device in the forward pass and come back in the backward pass.
    """

    forward_share: float
    backward_share: float
    encode_share: float
    spared_bytes: int = 0
    spared_record_bytes: int = 0
    crossing_bytes: int = 0

    def seconds(self, whole: PhaseSeconds) -> PhaseSeconds:
        """Return the seconds of the front, given those of the whole model."""
        return msgspec.structs.replace(
            whole,
            forward=whole.forward * self.forward_share,
            backward=whole.backward * self.backward_share,
            encode=whole.encode * self.encode_share,
        )

    def spared(self, batch_size: int) -> int:
        """Return the bytes of memory that a step of so many records takes less."""
        return self.spared_bytes + batch_size * self.spared_record_bytes


WHOLE = Front(1.0, 1.0, 1.0)
"""Nothing is moved."""


@dataclass(frozen=True)
class FrontModel:
    """What steps of the front cost, from what those of the whole model do."""

    whole: StepModel
    front: Front

    def step_seconds(self, batch_size: int) -> PhaseSeconds:
        """Return the seconds of one step at this batch size, per phase."""
        return self.front.seconds(self.whole.step_seconds(batch_size))

    @property
    def encode_seconds(self) -> float:
        """Seconds of taking the front's gradients out."""
        return self.whole.encode_seconds * self.front.encode_share

    def covers(self, batch_size: int) -> bool:
        """Return whether the whole model's steps of this size were measured."""
        return self.whole.covers(batch_size)

    def at(self, end: End | None) -> FrontModel:
        """Return the same with the profile's figures, and errors of cycles, at one end of their bands."""
        return replace(self, whole=self.whole.at(end))


def front_models(models: Mapping[str, StepModel], front: Front) -> dict[str, StepModel]:
    """Return what steps of the front cost on each device, from what those of the whole model do."""
    return dict(models) if front == WHOLE else {device: FrontModel(each, front) for device, each in models.items()}

"""Receiver of what one device sends of one step, frame by frame, up to its report."""

from __future__ import annotations

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.session_frames import Slice, Tensors
from firmware_agent.common.frames.step_frames import Stepped
from firmware_agent.common.slices import Array, Assembler
from firmware_agent.common.wire import AnyFrame
from host.training.sync.exchange.gradient_buffer import GradientBuffer


class GradientReceiver:
    """Takes one device's frames of one step.

    Attributes:
        news: whether the last frame brought anything that was not there.
    """

    def __init__(self, number: int, device: str, gathering: GradientBuffer, spare: dict[str, Array] | None) -> None:
        """Begin with nothing.

        Args:
            number: of the step.
            device: its name.
            gathering: where all devices' gradients come together.
            spare: memory that an earlier step took, to be overwritten.
        """
        self._number, self._device, self._gathering, self._spare = number, device, gathering, spare
        self._assembler: Assembler | None = None
        self.news = True

    def take(self, frame: AnyFrame) -> Stepped | None:
        """Take a frame; return the report, with which the device's part is whole.

        Raises:
            ProtocolError: the frame does not belong there, such as a slice of another step, or of a tensor that no
                gradient has.
        """
        assembler = self._assembler
        if isinstance(frame, Slice) and assembler is not None:
            self.news = assembler.add(frame)
            if self.news:
                self._gathering.arrived(self._device, frame.tensor, frame.offset, frame.offset + len(frame.data))
            return None
        self.news = True
        if isinstance(frame, Tensors) and assembler is None:
            self._assembler = Assembler(self._number, frame.specs, self._gathering.specs, self._spare)
            self._gathering.open(self._device, self._assembler)
            return None
        if isinstance(frame, Stepped) and frame.step == self._number and assembler is not None:
            self._spare = assembler.arrays()
            return frame
        raise ProtocolError(f"{self._device} sent {type(frame).__name__}, which has no place in step {self._number}")

    @property
    def spare(self) -> dict[str, Array] | None:
        """The memory of a part that is whole: once the step is over the next one may overwrite it."""
        return self._spare

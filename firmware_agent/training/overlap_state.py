"""Where an overlapped step stands in the drive."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from firmware_agent.common.errors import CsdError, ProtocolError
from firmware_agent.common.first_use import UseWatch
from firmware_agent.common.frames.step_frames import SendingSpec
from firmware_agent.common.send_queue import TransferSettings
from firmware_agent.common.slices import Assembler
from firmware_agent.training.cut_pass import Coming
from firmware_agent.training.step_timing import StepTiming


class StepState:
    """Where the step at hand stands."""

    def __init__(
        self, number: int = 0, inbound: Assembler | None = None, sending: TransferSettings | None = None
    ) -> None:
        self.number, self.inbound, self.sending = number, inbound, sending or TransferSettings()
        self.timing = StepTiming(number)
        self.moved: set[str] = set()
        self.offered: set[str] = set()
        self.ready: list[str] = []
        # Names of what has crossed the cut so far, and what is due in answer to its last part.
        self.crossing: dict[str, None] = {}
        self.coming: Coming | None = None
        # Whether the backward pass at hand is the step's last.
        self.last = False


class OverlapHooks:
    """What `GradientWorker.compute` does around its passes."""

    def __init__(self, watch: UseWatch, set_last: Callable[[bool], None]) -> None:
        self._watch, self._set_last = watch, set_last

    def forward(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        return self._watch

    def backward(self, last: bool) -> None:
        """Note that a backward pass begins, and whether it is the step's last."""
        self._set_last(last)


def sending_of(spec: SendingSpec | None) -> TransferSettings:
    """Return a step's settings.

    Raises:
        ProtocolError: no queue can do what the host asks for.
    """
    try:
        return (
            TransferSettings() if spec is None else TransferSettings(spec.schedule, spec.slice_bytes, spec.credit_bytes)
        )
    except CsdError as error:
        raise ProtocolError(f"the host asks for settings that cannot be: {error}") from error

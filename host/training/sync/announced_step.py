"""A synchronous step that was announced to the devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firmware_agent.common.send_queue import TransferSettings
from host.training.sync.exchange.slice_log import SliceLog
from host.training.sync.step_assignment import StepAssignment
from host.training.sync.step_result import Underway


@dataclass(frozen=True)
class AnnouncedStep:
    """A step that was announced: what it was dealt, whether somebody is probed beside it, and by which settings."""

    step: Underway
    dealt: StepAssignment
    probed: bool
    sending: TransferSettings

    def sent_with(self, logs: Sequence[SliceLog]) -> TransferSettings:
        """Return how it was sent: by settings that came after it was announced, if all devices had them in time."""
        in_time = bool(logs) and all(log.timed is not None and log.timed.resent for log in logs)
        return self.step.sending if in_time else self.sending

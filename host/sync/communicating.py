"""How a run's steps are sent, and whether they overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from firmware_agent.send_queue import Sending
from host.records import SendingRecord
from host.sync.exchange import FIFO


class Chooser(Protocol):
    """Decides how steps are sent."""

    def sending(self, step: int) -> Sending:
        """Return the settings of a step, from 1."""


@dataclass(frozen=True)
class Always:
    """A `Chooser` that always says the same."""

    settings: Sending = FIFO

    def sending(self, step: int) -> Sending:
        """Return the settings."""
        return self.settings


@dataclass(frozen=True)
class Communication:
    """How steps are sent.

    Attributes:
        chooser: decides on the settings.
        overlap: whether slices cross while devices compute, and the next step is announced before this one is over.
    """

    chooser: Chooser = Always()
    overlap: bool = False

    def sending(self, step: int) -> Sending:
        """Return the settings of a step."""
        return self.chooser.sending(step)

    def told(self, sending: Sending) -> SendingRecord | None:
        """Return what a step's record says of its settings; None for what was before there were any."""
        if sending.schedule == "fifo" and not self.overlap:
            return None
        return SendingRecord(sending.schedule, sending.slice_bytes, sending.credit_bytes, self.overlap)


TODAY = Communication()
"""Whole tensors, sent before and after computing."""

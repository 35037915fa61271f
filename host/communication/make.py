"""The communication tuner of a job."""

from __future__ import annotations

from firmware_agent.errors import ConfigurationError
from firmware_agent.send_queue import Sending
from host.communication.base import FixedSending, Tuner
from host.communication.section import ScheduleName


def make_tuner(schedule: ScheduleName, first: Sending, seed: int) -> Tuner:
    """Return what decides how steps are sent.

    Args:
        schedule: the job's.
        first: settings of the first step.
        seed: of whatever is drawn.

    Raises:
        ConfigurationError: there is no tuner of that name.
    """
    if schedule in ("fifo", "priority"):
        return FixedSending(first)
    raise ConfigurationError(f"communication: there is no tuner {schedule!r}; choose fifo or priority")

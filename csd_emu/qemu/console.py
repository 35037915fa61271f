"""Waiting for a line on a machine's serial console."""

from __future__ import annotations

import time
from collections.abc import Callable

from csd_emu.deadline import Deadline
from csd_emu.engines.base import last_lines
from firmware_agent.errors import BootTimeout, DeviceLost

_POLL_SECONDS = 0.1


def wait_for_line(
    read: Callable[[], str],
    marker: str,
    alive: Callable[[], bool],
    deadline: Deadline,
    name: str = "console",
    poll_seconds: float = _POLL_SECONDS,
) -> str:
    """Return what follows `marker` on the first line that has it.

    Args:
        read: returns all that the machine's console has said so far.
        marker: what to look for.
        alive: whether the machine still runs.
        deadline: until when.
        name: of the machine, for messages.
        poll_seconds: how often it is read.

    Raises:
        DeviceLost: the machine ended.
        BootTimeout: the deadline passed. Both carry the console's last lines.
    """
    while True:
        text = read()
        for line in text.splitlines()[: None if text.endswith("\n") else -1]:
            if marker in line:
                return line.partition(marker)[2].strip()
        if not alive():
            raise DeviceLost(f"{name} ended before {marker!r}; its last words:\n{last_lines(text)}")
        if deadline.expired:
            said = last_lines(text)
            raise BootTimeout(f"{name}: no {marker!r} within {deadline.seconds:.0f} s; its last words:\n{said}")
        time.sleep(poll_seconds)

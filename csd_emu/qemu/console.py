"""Waiting for a line on a machine's serial console."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from csd_emu.deadline import Deadline
from csd_emu.engines.base import last_words
from firmware_agent.errors import BootTimeout, DeviceLost

_POLL_SECONDS = 0.1


def wait_for_line(console: Path, marker: str, alive: Callable[[], bool], deadline: Deadline) -> str:
    """Return what follows `marker` on the first line that has it.

    Args:
        console: the log that the machine's console goes to.
        marker: what to look for.
        alive: whether the machine still runs.
        deadline: until when.

    Raises:
        DeviceLost: the machine ended.
        BootTimeout: the deadline passed. Both carry the console's last lines.
    """
    while True:
        text = console.read_text(encoding="utf-8", errors="replace") if console.exists() else ""
        for line in text.splitlines()[: None if text.endswith("\n") else -1]:
            if marker in line:
                return line.partition(marker)[2].strip()
        if not alive():
            raise DeviceLost(f"{console.stem} ended before {marker!r}; its last words:\n{last_words(console)}")
        if deadline.expired:
            said = last_words(console)
            raise BootTimeout(f"{console.stem}: no {marker!r} within {deadline.seconds:.0f} s; its last words:\n{said}")
        time.sleep(_POLL_SECONDS)

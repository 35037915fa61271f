"""Check that so many drives fit into the memory that a container may use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil

from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.units import format_bytes

# Lower bounds: what libvirt, the template and this process hold, and what a clone that trains the smallest model
# holds beside the template's memory, which all share (bench `memory`: 140 MB before it trains).
BASE_BYTES, DRIVE_BYTES = 700 << 20, 250 << 20
# Of version 2 and version 1 of the kernel's control groups, as a container sees its own.
LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def limit_bytes(files: Iterable[Path] = LIMIT_FILES) -> int | None:
    """Return the container's limit, or None if it has none; a limit above the machine's memory is none."""
    for path in files:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < psutil.virtual_memory().total:
            return int(text)
    return None


def needed_bytes(count: int) -> int:
    """Return how much memory `count` drives need at the very least."""
    return BASE_BYTES + count * DRIVE_BYTES


def check_memory(count: int, limit: int | None, available_bytes: int) -> None:
    """Return if `count` drives fit.

    Args:
        count: of drives.
        limit: the container's, in bytes; None for none.
        available_bytes: of the machine.

    Raises:
        EnvironmentUnfit: they do not.
    """
    needed = needed_bytes(count)
    for bound, whose, remedy in (
        (limit, "this container may use", "raise CSD_DRIVES_MEMORY, in .env"),
        (available_bytes, "this machine has free", "free some"),
    ):
        if bound is not None and needed > bound:
            raise EnvironmentUnfit(
                f"CSD_COUNT={count} drives need at least {format_bytes(needed)} of memory, {whose} "
                f"{format_bytes(bound)}; lower CSD_COUNT or {remedy}"
            )

"""Memory of the host for its part of a model that is cut."""

from __future__ import annotations

import psutil

from csd_emu.perfmodel.split.split_problem import ACTIVATION_COPIES, PARAMETER_COPIES
from csd_emu.profiles import Profile

# Share of the host's memory that batches are planned for.
_PLANNED = 0.75


def host_bytes(moved_bytes: int, tail_bytes: int, records: int) -> int:
    """Return a generous guess of the host's memory for its part, with so many records of all drives together.

    Args:
        moved_bytes: of the host's layers' tensors.
        tail_bytes: of all values that are computed for a record there.
        records: of a step.
    """
    return PARAMETER_COPIES * moved_bytes + ACTIVATION_COPIES * records * tail_bytes


def host_room_bytes(host: Profile) -> int:
    """Return what the host's part may take: the memory of its profile, and no more than is free on this machine."""
    return min(int(host.dram_bytes.value), psutil.virtual_memory().available)


def planned_room_bytes(host: Profile) -> int:
    """Return what batches are planned for: what is free changes, and a run that is resumed has the same batches."""
    return int(_PLANNED * min(host.dram_bytes.value, psutil.virtual_memory().total))


def most_host_records(moved_bytes: int, tail_bytes: int, room_bytes: int) -> int:
    """Return for how many records of a step there is room; other arguments as of `host_bytes`."""
    return max(0, (room_bytes - host_bytes(moved_bytes, tail_bytes, 0)) // max(1, host_bytes(0, tail_bytes, 1)))

"""Stragglers of a synchronous step: after how many seconds a device is not waited for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A step whose gradient would hold less than this share of its records waits until it holds so much.
LEAST_SHARE = 0.5


class DeviceProgress(NamedTuple):
    """One device's part in a step: its records, its compute seconds, and those that were expected."""

    device: str
    records: int
    seconds: float
    expected_seconds: float


def give_up_seconds(parts: Sequence[DeviceProgress], straggler_factor: float) -> float:
    """Return after how many compute seconds of a step those who are not done are late.

    `straggler_factor` times what the slowest was expected to take, or the moment at which those who are done hold half
    of the step's records, whichever comes later: if all have become slow at once nobody is late.
    """
    limit = straggler_factor * max(part.expected_seconds for part in parts)
    needed = LEAST_SHARE * sum(part.records for part in parts)
    done = 0
    for part in sorted(parts, key=lambda part: part.seconds):
        done += part.records
        if done >= needed:
            return max(limit, part.seconds)
    return limit

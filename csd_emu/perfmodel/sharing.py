"""Processor sharing: a link that gives all transfers in progress equal shares, and never idles while there is one."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from firmware_agent.common.errors import ConfigurationError


def share_link(sizes: Sequence[int], begins: Sequence[float], rate: float) -> list[float]:
    """Return when a shared link has carried each transfer; O(n log n), and an empty one ends as it begins.

    `level` is the bytes that a transfer in progress since the busy period's begin would have been given by now: one
    that enters at level x with s bytes ends at level x + s.
    """
    ends = list(begins)
    order = sorted((index for index, size in enumerate(sizes) if size), key=lambda index: (begins[index], index))
    waiting: list[tuple[float, int]] = []
    now = level = 0.0
    position = 0
    while waiting or position < len(order):
        if not waiting:
            now, level = begins[order[position]], 0.0
        arrival = begins[order[position]] if position < len(order) else math.inf
        end = now + (waiting[0][0] - level) * len(waiting) / rate if waiting else math.inf
        if arrival <= end:
            level += (arrival - now) * rate / len(waiting) if waiting else 0.0
            now = arrival
            heapq.heappush(waiting, (level + sizes[order[position]], order[position]))
            position += 1
        else:
            level, index = heapq.heappop(waiting)
            now = ends[index] = max(now, end)
    return ends


def check_numbers(who: str, rates: Mapping[str, float], counts: Mapping[str, float]) -> None:
    """Return if the `rates` are positive and the `counts` not negative, all finite.

    Raises:
        ConfigurationError: one is not; it is named as `who` has it.
    """
    for name, value in rates.items():
        if not 0 < value < math.inf:
            raise ConfigurationError(f"{who}: {name} is {value!r}; it must be a positive number")
    for name, value in counts.items():
        if not 0 <= value < math.inf:
            raise ConfigurationError(f"{who}: {name} is {value!r}; it must be a number that is not negative")

"""Slice sizes and credits that tuners choose from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from firmware_agent.common.frames.frame_fields import MAX_SLICE_BYTES
from firmware_agent.common.send_queue import TransferSettings
from host.config.communication_section import CREDIT_BYTES, SLICE_BYTES

LEAST_SLICE_BYTES = 8 << 10
LEAST_CREDIT_BYTES = 16 << 10
MOST_CREDIT_BYTES = 16 << 20
# Sizes that a search finds are rounded to this: whole elements of every dtype, whole checksum blocks.
ROUND_BYTES = 1 << 10
# What a job has that says nothing.
DEFAULT = TransferSettings("priority", SLICE_BYTES, CREDIT_BYTES)


@cache
def candidates() -> tuple[TransferSettings, ...]:
    """Return every slice size and credit that is a power of two within the bounds, credit no smaller than a slice.

    A smaller credit does what one of a slice does: one slice at a time.
    """
    return tuple(
        TransferSettings("priority", slice_bytes, credit_bytes)
        for slice_bytes in _powers(LEAST_SLICE_BYTES, MAX_SLICE_BYTES)
        for credit_bytes in _powers(LEAST_CREDIT_BYTES, MOST_CREDIT_BYTES)
        if credit_bytes >= slice_bytes
    )


def round_bytes(size_bytes: float, most: int) -> int:
    """Return a size that search found as one that is sent: a multiple of `ROUND_BYTES`, at least that, at most `most`.

    `most` is a multiple itself.
    """
    return max(ROUND_BYTES, min(most, round(size_bytes / ROUND_BYTES) * ROUND_BYTES))


def _powers(least: int, most: int) -> Iterator[int]:
    while least <= most:
        yield least
        least *= 2

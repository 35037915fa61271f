"""Slice sizes and credits that tuners choose from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from csd_emu.perfmodel.overlap.simulated_link import SharedLink
from firmware_agent.common.send_queue import TransferSettings

# Up to ByteScheduler's own default, 1,000,000 parameters of 4 bytes; more than `MAX_SLICE_BYTES` go as several frames.
LEAST_SLICE_BYTES, MOST_SLICE_BYTES = 8 << 10, 4 << 20
LEAST_CREDIT_BYTES, MOST_CREDIT_BYTES = 16 << 10, 16 << 20
# Sizes that a search finds are rounded to this: whole elements of every dtype, whole checksum blocks.
ROUND_BYTES = 1 << 10


@cache
def candidates(most_slice_bytes: int = MOST_SLICE_BYTES, per_octave: int = 1) -> tuple[TransferSettings, ...]:
    """Return every slice size and credit within the bounds, so many per octave, credit no smaller than a slice.

    A smaller credit does what one of a slice does: one slice at a time.
    """
    return tuple(
        TransferSettings("priority", slice_bytes, credit_bytes)
        for slice_bytes in _powers(LEAST_SLICE_BYTES, most_slice_bytes, per_octave)
        for credit_bytes in _powers(LEAST_CREDIT_BYTES, MOST_CREDIT_BYTES, per_octave)
        if credit_bytes >= slice_bytes
    )


def scaled(sending: TransferSettings, slice_octaves: float, credit_octaves: float) -> TransferSettings:
    """Return a setting so many octaves from another one, as far as the bounds allow."""
    slice_bytes = round_bytes(max(LEAST_SLICE_BYTES, (sending.slice_bytes or 0) * 2.0**slice_octaves), MOST_SLICE_BYTES)
    credit_bytes = round_bytes((sending.credit_bytes or 0) * 2.0**credit_octaves, MOST_CREDIT_BYTES)
    return TransferSettings("priority", slice_bytes, max(slice_bytes, credit_bytes))


def default_setting(model_bytes: int, link: SharedLink) -> TransferSettings:
    """Return what a job has that says nothing; nothing is measured yet, so theta and b are what is said of them.

    With slices of s bytes a model of M bytes costs M / s times theta, the seconds of a slice beside its bytes, and what
    the next forward pass needs first waits for the slice that is crossing, s / b at the bandwidth b. The sum of both is
    least where s = sqrt(M theta b). Slices that are n times too small cost n times as much, ones that are too large a
    little only; so no more than one slice's wait is counted. Another slice leaves while less than the credit is unread:
    a credit of one slice, and of what crosses in the 2 (latency + theta) until the answer is there, has one slice made
    ready while another crosses, and the link does not starve.

    Args:
        model_bytes: M, of all tensors that are exchanged.
        link: what a drive has of it, with theta.
    """
    rate, slice_seconds, most = link.bytes_per_second, link.slice_seconds, max(1, model_bytes)
    slice_bytes = max(LEAST_SLICE_BYTES, math.sqrt(model_bytes * slice_seconds * rate))
    credit_bytes = slice_bytes + 2 * rate * (link.latency_seconds + slice_seconds)
    sizes = (slice_bytes, MOST_SLICE_BYTES), (credit_bytes, MOST_CREDIT_BYTES)
    return TransferSettings("priority", *(min(round_bytes(size, bound), most) for size, bound in sizes))


def round_bytes(size_bytes: float, most: int) -> int:
    """Return a size that search found as one that is sent: a multiple of `ROUND_BYTES`, at least that, at most `most`.

    `most` is a multiple itself.
    """
    return max(ROUND_BYTES, min(most, round(size_bytes / ROUND_BYTES) * ROUND_BYTES))


def _powers(least: int, most: int, per_octave: int) -> Iterator[int]:
    steps = range(per_octave * (most // least).bit_length())
    sizes = (round_bytes(least * 2.0 ** (step / per_octave), most * 2) for step in steps)
    yield from (size for size in sizes if size <= most)

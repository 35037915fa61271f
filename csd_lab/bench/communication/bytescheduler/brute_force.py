"""The best single setting of a case, by trying many."""

from __future__ import annotations

import math
from collections.abc import Callable

from csd_lab.bench.communication.bytescheduler.event_world import LinkWorld, Setting

# Slices: from so small a part of the model, in octaves, up to whole layers. Credits: so many slices, or no limit.
SMALLEST_PART = 512
CREDITS_PER_SLICE = (1, 2, 4, 32)
_NO_LIMIT = 1 << 40
# Around the best of these: steps in octaves, each until nothing near is better by such a share.
_NEAR_OCTAVES, _BETTER = (1.0, 0.5), 0.001


def find_best(case: LinkWorld, seconds_of: Callable[[Setting], float]) -> tuple[Setting, float]:
    """Return the best setting and its step seconds.

    Args:
        case: what is tried.
        seconds_of: a setting's step seconds; it is asked for the same one more than once.
    """
    best, least = Setting(_NO_LIMIT, _NO_LIMIT), math.inf
    model_bytes = sum(layer.size_bytes for layer in case.layers)

    def try_out(setting: Setting) -> bool:
        nonlocal best, least
        if least_seconds(case, setting) > least:
            return False
        better, before = (seconds := seconds_of(setting)) < least, least
        if better:
            best, least = setting, seconds
        return seconds < before * (1 - _BETTER)

    try_out(best)
    octaves = math.log2(max(layer.size_bytes for layer in case.layers) * SMALLEST_PART / model_bytes)
    for octave in range(math.ceil(octaves)):
        # From large ones down, so that what must be slower is known before it is tried.
        slice_bytes = math.ceil(model_bytes / SMALLEST_PART * 2.0 ** (math.ceil(octaves) - 1 - octave))
        for many in CREDITS_PER_SLICE:
            try_out(Setting(slice_bytes, many * slice_bytes))
    for near in _NEAR_OCTAVES:
        while any([try_out(each) for each in _neighbours(best, near)]):
            pass
    return best, least


def _neighbours(setting: Setting, octaves: float) -> list[Setting]:
    """Return settings with smaller and larger slices and credits, and both together."""
    factors = 2.0**-octaves, 1.0, 2.0**octaves
    pairs = [(a, b) for a in factors for b in factors if (a, b) != (1.0, 1.0)]
    return [Setting(math.ceil(setting.slice_bytes * a), math.ceil(setting.credit_bytes * b)) for a, b in pairs]


def least_seconds(case: LinkWorld, setting: Setting) -> float:
    """Return what no step is shorter than: each drive's processor sends and reads all slices, one after the other."""
    slices = sum(math.ceil(layer.size_bytes / setting.slice_bytes) for layer in case.layers)
    return 2 * slices * max(case.slice_seconds_of(drive) for drive in range(len(case.slowdowns)))

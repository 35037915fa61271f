"""Outliers: steps that something else disturbed, and that say nothing about a step's cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

# A step that takes more than so many times the median was disturbed; one of twice as long may be the device's own way.
_FACTOR = 3.0
# One spike among so many steps and fewer; more of them are no exceptions.
_STEPS_PER_SPIKE = 8


def find_spikes(logarithms: Mapping[int, float]) -> set[int]:
    """Return which few steps of a trial took much longer than the others; a single step cannot be told from one.

    Args:
        logarithms: number of the step -> logarithm of its seconds.
    """
    if len(logarithms) < 2:
        return set()
    ordered = sorted(logarithms.values())
    # Of two steps the shorter one counts: what disturbs never makes a step shorter.
    most = ordered[(len(ordered) - 1) // 2] + math.log(_FACTOR)
    spikes = {number for number, each in logarithms.items() if each > most}
    return spikes if len(spikes) <= -(-len(logarithms) // _STEPS_PER_SPIKE) else set()

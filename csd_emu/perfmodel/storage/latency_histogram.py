"""Counts of latencies in bins of a 64th of an octave's beginning: quantiles within 0.8 %, in bounded room."""

from __future__ import annotations

import numpy as np

from csd_emu.perfmodel.flash.flash_queues import Integers
from csd_emu.profiles.flash_geometry import SECOND

_PART_BITS = 6
_LONGEST = 2**52
BINS = (52 - _PART_BITS + 1) << _PART_BITS


class LatencyHistogram:
    """How many latencies were how long.

    Attributes:
        counts: (`BINS`,) int64; up to 127 ns each nanosecond has a bin.
        total_ns: sum of the latencies.
    """

    def __init__(self) -> None:
        """Count none."""
        self.counts, self.total_ns = np.zeros(BINS, np.int64), 0

    @property
    def number(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    def add(self, latency_ns: Integers) -> None:
        """Count latencies of 0 to 2^52 ns, (n,)."""
        values = np.minimum(latency_ns, _LONGEST - 1)
        shift = np.maximum(np.frexp(values.astype(np.float64))[1] - (_PART_BITS + 1), 0)
        self.counts += np.bincount((shift << _PART_BITS) + (values >> shift), minlength=BINS)
        self.total_ns += int(latency_ns.sum())

    def mean_seconds(self) -> float:
        """Return the mean, 0 of none."""
        return self.total_ns / max(self.number, 1) / SECOND

    def quantile_seconds(self, share: float) -> float:
        """Return the middle of the bin of the nearest rank, 0 of none."""
        rank = int(np.ceil(share * self.number))
        if not rank:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self.counts), rank))
        shift = max((place >> _PART_BITS) - 1, 0)
        return ((place - (shift << _PART_BITS) << shift) + (1 << shift >> 1)) / SECOND

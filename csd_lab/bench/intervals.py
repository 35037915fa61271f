"""Intervals of means over drawn cases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit


def half_interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a mean (Student); infinite for one value."""
    if len(values) < 2:
        return float("inf")
    return float(stdtrit(len(values) - 1, 0.975)) * float(np.std(values, ddof=1) / np.sqrt(len(values)))


def lower_end(values: Sequence[float] | npt.NDArray[np.float64], seed: int = 0, draws: int = 10_000) -> float:
    """Return the lower end of the 95 % interval of a mean of cases: the bootstrap's percentile over so many draws."""
    drawn = np.random.default_rng(seed).choice(values, (draws, len(values)))
    return float(np.percentile(drawn.mean(axis=1), 2.5))

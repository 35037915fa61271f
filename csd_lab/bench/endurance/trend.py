"""Trend of a series: a robust slope with its 95 % interval, for `csd-emu bench soak`. Pure.

Theil and Sen's slope is the median of the slopes between all pairs, and its interval comes from Kendall's variance
(Sen, JASA 1968, section 3): a few spikes do not move it, and no distribution is assumed. It does assume independent
errors, which memory and files do not have from one round to the next; so the series is cut into blocks of equal length
first, and each counts by its median: over a minute and more what is left of the dependence is small. The interval of
least squares with Newey and West's variance was considered: it needs many more blocks until it holds what it promises.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import theilslopes

BLOCKS = 24
# What comes before is warming up: imports, pools of memory, the first of everything.
WARM_UP = 0.25
LEAST_SAMPLES = 12


@dataclass(frozen=True)
class Trend:
    """A slope, and the ends of its 95 % interval."""

    slope: float
    low: float
    high: float

    def scaled(self, factor: float) -> Trend:
        """Return it in another unit; `factor` is positive."""
        return Trend(factor * self.slope, factor * self.low, factor * self.high)

    def grows(self, allowed: float) -> bool:
        """Return whether growth is certain and more than `allowed`: the interval is above 0, and reaches beyond it."""
        return self.low > 0.0 and self.high > allowed


def trend(x: Sequence[float], y: Sequence[float], blocks: int = BLOCKS) -> Trend:
    """Return the slope of a long series, warming up left out, block by block (see above).

    Raises:
        ValueError: it is too short to be judged.
    """
    skipped = round(WARM_UP * len(x))
    kept_x, kept_y = list(x)[skipped:], list(y)[skipped:]
    if len(kept_x) < LEAST_SAMPLES:
        raise ValueError(f"{len(x)} samples are too few for a trend; run for longer")
    size = max(1, len(kept_x) // min(blocks, len(kept_x)))
    starts = range(0, len(kept_x) - size + 1, size)
    means = [statistics.fmean(kept_x[start : start + size]) for start in starts]
    found = theilslopes([statistics.median(kept_y[start : start + size]) for start in starts], means)
    return Trend(float(found.slope), float(found.low_slope), float(found.high_slope))

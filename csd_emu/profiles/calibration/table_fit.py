"""From measured points to any batch size, mindful of where torch changes its kernels. Pure.

On one thread torch 2.x runs other convolution kernels at some batch sizes than below them: small images at batch 1, and
1x1 filters below batch 16, go to its own code, the rest to oneDNN (`use_mkldnn` in ATen's Convolution.cpp). So the cost
is close to a line ``fixed + slope * batch`` within a range of batch sizes, and jumps between two ranges; MobileNetV2's
cost per record rises by almost a half at batch 16.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

Point = tuple[int, float]
# The batch sizes from which on other kernels may run.
KERNEL_CHANGES = (2, 16)
# The trend beyond the largest batch of a range comes from so many of the largest.
TREND_POINTS = 3


def predict(points: Sequence[Point], batch_size: int) -> float:
    """Return the value at `batch_size`; where the points grow, it grows too.

    A measured batch size has its measured value. Others follow the points of their own range: between two of them the
    line through both, outside of them the line of `trend`. A range with one point gets its line through this point, the
    fixed cost from the next range with two or more. A range without a point is taken for the one below it, or above.
    In any case the value lies between those of the measured batches on both sides.

    Args:
        points: (batch size, value >= 0), at least two, batch sizes strictly increasing.
        batch_size: at least 1.
    """
    below = [point for point in points if point[0] <= batch_size]
    above = [point for point in points if point[0] > batch_size]
    if below and below[-1][0] == batch_size:
        return below[-1][1]
    low, high = below[-1] if below else None, above[0] if above else None
    if low and high and (low[1] >= high[1] or _range(low[0]) == _range(high[0])):
        return _between(low, high, batch_size)
    value = _on_line(points, batch_size)
    start = max([change for change in KERNEL_CHANGES if change <= batch_size], default=1)
    if low and low[0] < start < batch_size + 1:
        value = max(value, predict(points, start - 1))  # what the range below ended with
    return min(max(value, low[1] if low else 0.0), high[1] if high else value)


def trend(points: Sequence[Point]) -> tuple[float, float]:
    """Return the non-negative line (fixed, slope) through the `TREND_POINTS` largest batches of `points`, at least two.

    Least squares of the relative residuals: a step of twice the seconds may be off by twice as much.
    """
    chosen = [(batch, value) for batch, value in points[-TREND_POINTS:] if value > 0]
    if len(chosen) < 2:
        return (chosen[0][1] if chosen else 0.0), 0.0
    weights = [value**-2 for _, value in chosen]
    total = sum(weights)
    mean_batch = sum(w * batch for w, (batch, _) in zip(weights, chosen, strict=True)) / total
    mean_value = sum(w * value for w, (_, value) in zip(weights, chosen, strict=True)) / total
    offsets = [batch - mean_batch for batch, _ in chosen]
    both = sum(w * off * (value - mean_value) for w, off, (_, value) in zip(weights, offsets, chosen, strict=True))
    slope = max(0.0, both / sum(w * off**2 for w, off in zip(weights, offsets, strict=True)))
    return max(0.0, mean_value - slope * mean_batch), slope


def has_kernels(batches: Sequence[int], batch_size: int) -> bool:
    """Return whether one of the measured `batches` ran the kernels that torch has for `batch_size`."""
    return any(_range(batch) == _range(batch_size) for batch in batches)


def spread_of(values: Sequence[float]) -> float:
    """Return how far measured values scatter: the distance of their quartiles over their median; 0 of one alone."""
    if len(values) < 2:
        return 0.0
    low, middle, high = np.quantile(np.array(values), [0.25, 0.5, 0.75])
    return float((high - low) / middle) if middle > 0 else float("inf")


def _on_line(points: Sequence[Point], batch_size: int) -> float:
    """Return the value outside of the points of the range of `batch_size`, which has no point there itself."""
    ranges = sorted({_range(batch) for batch, _ in points}, key=lambda r: (abs(r - _range(batch_size)), r))
    if len(own := _of_range(points, ranges[0])) >= 2:
        if batch_size < own[0][0]:
            return max(_between(own[0], own[1], batch_size), own[0][1] * batch_size / own[0][0])
        return own[-1][1] + trend(own)[1] * (batch_size - own[-1][0])
    batch, value = own[0]
    wide = next((found for r in ranges[1:] if len(found := _of_range(points, r)) >= 2), points)
    fixed = min(trend(wide)[0], value)
    return fixed + (value - fixed) * batch_size / batch


def _of_range(points: Sequence[Point], number: int) -> list[Point]:
    return [point for point in points if _range(point[0]) == number]


def _range(batch_size: int) -> int:
    return bisect.bisect_right(KERNEL_CHANGES, batch_size)


def _between(low: Point, high: Point, batch_size: int) -> float:
    share = (batch_size - low[0]) / (high[0] - low[0])
    return low[1] + share * (high[1] - low[1])

"""From measured points to any batch size: a line between two, the trend of the largest beyond. Pure."""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[int, float]
# The trend beyond the largest batch comes from so many of the largest.
TREND_POINTS = 3


def predict(points: Sequence[Point], batch_size: int) -> float:
    """Return the value at `batch_size`.

    At a measured batch size it is the measured value; between two, on the line through them; beyond the largest, on a
    line through the largest with the slope of `trend`; below the smallest, on the line through the two smallest, but
    never below the straight line to zero at batch size 0.

    Args:
        points: (batch size, value >= 0), at least two, batch sizes strictly increasing.
        batch_size: at least 1.
    """
    first, last = points[0], points[-1]
    if batch_size >= last[0]:
        return last[1] + trend(points) * (batch_size - last[0])
    if batch_size < first[0]:
        return max(_between(first, points[1], batch_size), first[1] * batch_size / first[0])
    upper = next(number for number, point in enumerate(points) if point[0] > batch_size)
    return _between(points[upper - 1], points[upper], batch_size)


def trend(points: Sequence[Point]) -> float:
    """Return the slope of a non-negative line ``fixed + slope * batch`` through the `TREND_POINTS` largest batches.

    Least squares of the relative residuals: a step of twice the seconds may be off by twice as much.
    """
    chosen = points[-TREND_POINTS:]
    weights = [1.0 / value**2 if value > 0 else 0.0 for _, value in chosen]
    total = sum(weights)
    if total == 0:
        return 0.0
    mean_batch = sum(w * batch for w, (batch, _) in zip(weights, chosen, strict=True)) / total
    mean_value = sum(w * value for w, (_, value) in zip(weights, chosen, strict=True)) / total
    spread = sum(w * (batch - mean_batch) ** 2 for w, (batch, _) in zip(weights, chosen, strict=True))
    if spread == 0:
        return 0.0
    both = sum(
        w * (batch - mean_batch) * (value - mean_value) for w, (batch, value) in zip(weights, chosen, strict=True)
    )
    return max(0.0, both / spread)


def _between(low: Point, high: Point, batch_size: int) -> float:
    share = (batch_size - low[0]) / (high[0] - low[0])
    return low[1] + share * (high[1] - low[1])

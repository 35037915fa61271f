"""A curve of a run that may go on for ever, in bounded memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_POINTS = 512

Point = tuple[float, float]


class ThinnedCurve:
    """Points in the order in which they came, at most `MOST_POINTS`, the first, the last and the extremes among them.

    When there are more, they are thinned to about half: of each stretch of the curve, the lowest and the highest point
    stay. A y that is no number (of a diverged run) is a gap, and counts as neither.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        """Begin without points; `most` is at least 8."""
        self._most = most
        self._points: list[Point] = []

    def add(self, x: float, y: float) -> None:
        """Add a point at the end."""
        self._points.append((x, y))
        if len(self._points) > self._most:
            self._points = thin(self._points, self._most // 2)

    def points(self) -> list[Point]:
        """Return a copy of the points."""
        return list(self._points)


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` (at least 4) of the points, in order: the first, the last, and extremes all along."""
    if len(points) <= most:
        return list(points)
    inner = range(1, len(points) - 1)
    buckets = (most - 2) // 2
    kept = {0, len(points) - 1}
    for number in range(buckets):
        bucket = inner[number * len(inner) // buckets : (number + 1) * len(inner) // buckets]
        known = [index for index in bucket if math.isfinite(points[index][1])] or list(bucket[:1])
        kept.add(min(known, key=lambda index: points[index][1]))
        kept.add(max(known, key=lambda index: points[index][1]))
    return [points[index] for index in sorted(kept)]

"""Charts as plain data: the report draws them as SVG, the live page hands them to Plotly.

Colours are names of CSS variables without their dashes: ``s1`` to ``s8``, ``ink``, ``muted``, ``warn``. Dashes and
patterns are Plotly's words for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

# More points than these are thinned out: a page has fewer pixels.
MOST_POINTS = 240
MOST_LINES = 6
# A value beyond this has diverged: an axis up to it would overflow, and show nothing.
_LARGEST = 1e100
_DASHES = ("solid", "dash", "dashdot", "dot", "longdashdot", "longdash")

T = TypeVar("T")
Point = tuple[float, ...]
"""Place on the x axis, and the values there; a band has its lower edge first."""


class Curve(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line, an area or a set of points.

    Attributes:
        name: in the legend; empty for none.
        x: places.
        y: values; null is a gap.
        colour: of line and area.
        dash: of the line.
        steps: whether a value holds until the next place.
        fill: ``stacked`` on the areas before it, or a ``band`` between `low` and `y`; empty for a line.
        low: lower edge of a band.
        pattern: of a filled area.
        points: shape of points that are not joined; empty for a line.
        spans: of such points, how far each may be off to the left, right, below and above.
    """

    name: str
    x: list[float]
    y: list[float | None]
    colour: str
    dash: str = "solid"
    steps: bool = False
    fill: Literal["", "stacked", "band"] = ""
    low: list[float | None] = []
    pattern: str = ""
    points: Literal["", "circle", "square", "ring"] = ""
    spans: list[tuple[float, float, float, float]] = []


class Mark(msgspec.Struct, frozen=True):
    """A stretch of the x axis that is shaded, or a place on it, if both ends are the same; `text` is its tooltip."""

    name: str
    begin: float
    end: float
    text: str


class Pane(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Curves over one y axis.

    Attributes:
        curves: from behind to front.
        unit: of its axis, with the clock if these are seconds.
        low: where the axis begins, unless a curve goes lower; null for where the curves do.
        high: where it ends; null for where the curves do.
        log: whether it is logarithmic, with 0 at its foot.
        target: value at which a line is drawn across; null for none.
    """

    curves: list[Curve]
    unit: str = ""
    low: float | None = None
    high: float | None = None
    log: bool = False
    target: float | None = None


class Chart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Panes over one x axis.

    Attributes:
        name: unique on a page, letters and dashes.
        title: over it.
        caption: below it: what is shown, in which unit and clock.
        told: the chart in words, for who cannot see it.
        x_title: of the x axis.
        panes: from above.
        marks: of all panes.
        notes: x, y and text of points in the last pane that have their name beside them.
        x_range: ends of the x axis; null for those of the curves.
        x_log: whether the x axis is logarithmic.
        whole: whether only whole numbers are named on the x axis.
        wide: whether it is also drawn over the whole width of a page.
    """

    name: str
    title: str
    caption: str
    told: str
    x_title: str
    panes: list[Pane]
    marks: list[Mark] = []
    notes: list[tuple[float, float, str]] = []
    x_range: tuple[float, float] | None = None
    x_log: bool = False
    whole: bool = False
    wide: bool = False


def make_curve(name: str, through: Iterable[Point], colour: str, **style: Any) -> Curve:
    """Return a curve through these points, with six digits of each number; what is no number is a gap."""
    through = list(through)
    x, y = [shorten_number(point[0]) or 0.0 for point in through], [shorten_number(point[-1]) for point in through]
    if style.get("fill") == "band":
        style["low"] = [shorten_number(point[1]) for point in through]
    return Curve(name=name, x=x, y=y, colour=colour, **style)


def make_lines(series: Iterable[tuple[str, Iterable[Point]]], **style: Any) -> list[Curve]:
    """Return a curve for each name and its points; all can be told apart without colour."""
    return [
        make_curve(name, points, f"s{index % 8 + 1}", dash=_DASHES[index % len(_DASHES)], **style)
        for index, (name, points) in enumerate(series)
    ]


def shorten_number(value: float | None) -> float | None:
    """Return six digits of `value`: a thousand drives are sent at once; None if it is no number to be drawn."""
    return float(f"{value:.6g}") if value is not None and abs(value) <= _LARGEST else None


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most `most` (at least 4) of the points, in order: the first, the last, and extremes all along.

    Of each stretch of the curve the point with the lowest first and that with the highest last value stay. What is no
    number (of a diverged run) counts as neither.
    """
    if len(points) <= most:
        return list(points)
    inner = range(1, len(points) - 1)
    buckets = (most - 2) // 2
    kept = {0, len(points) - 1}
    for number in range(buckets):
        bucket = inner[number * len(inner) // buckets : (number + 1) * len(inner) // buckets]
        known = [index for index in bucket if math.isfinite(points[index][1])] or list(bucket[:1])
        kept |= {min(known, key=lambda index: points[index][1]), max(known, key=lambda index: points[index][-1])}
    return [points[index] for index in sorted(kept)]


def chunk(items: Sequence[T], most: int = MOST_POINTS) -> list[Sequence[T]]:
    """Return the items in at most `most` stretches of the same length, for means over each."""
    size = math.ceil(len(items) / most) or 1
    return [items[at : at + size] for at in range(0, len(items), size)]

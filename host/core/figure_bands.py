"""Bands of figures: from the least to the most that a figure may be, for the profiles' own figures have bands.

All profiles' figures stand at the same end at once, so a band is an outer bound and no confidence interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class Band(msgspec.Struct, frozen=True):
    """From the least to the most that a figure may be."""

    low: float
    high: float


def sum_bands(parts: Iterable[Mapping[str, Band]]) -> dict[str, Band]:
    """Return figure -> the band of its sum over `parts`, whose figures stand at the same ends; none if one has none."""
    each = list(parts)
    names = each[0] if all(each) and each else ()
    return {name: Band(sum(part[name].low for part in each), sum(part[name].high for part in each)) for name in names}


def rate_band(above: float, below: Band) -> Band:
    """Return the band of an exact figure over one whose band is above 0."""
    return Band(above / below.high, above / below.low)


def ratio_band(one: Band, other: Band) -> Band:
    """Return the band of a ratio of two figures that rest on the same profiles, so that both stand at the same end."""
    ends = one.low / other.low, one.high / other.high
    return Band(min(ends), max(ends))


def cancelled_share(one: Band, other: Band) -> float:
    """Return how much of the band of two figures' ratio cancels, 0 to 1: that of unrelated figures is the whole."""
    whole = one.high / other.low - one.low / other.high
    ratio = ratio_band(one, other)
    return 1 - (ratio.high - ratio.low) / whole if whole > 0 else 1.0


def format_band(value: str, band: Band | None) -> str:
    """Return a figure for people with its band, where it has one: ``0.40 (0.31 to 0.52)``."""
    if band is None or band.low == band.high:
        return value
    low, high = (f"{end:.0f}" if abs(end) >= 1000 else f"{end:.3g}" for end in (band.low, band.high))
    return f"{value} ({low} to {high})"

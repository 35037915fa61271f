"""Bands of figures: from the least to the most that a figure may be, for the profiles' own figures have bands.

All profiles' figures stand at the same end at once, so a band is an outer bound and no confidence interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from csd_emu.profiles.profile import Band as Band

IN_BRACKETS = "in brackets: with the profiles' figures at either end of their bands"


def span_of(values: Iterable[float]) -> Band:
    """Return the band from the least to the most of a figure's values at both ends."""
    ends = sorted(values)
    return Band(ends[0], ends[-1])


def add_bands(sums: Mapping[str, Band], more: Mapping[str, Band]) -> dict[str, Band]:
    """Return figure -> the band of its sum, all at the same ends; what only one of both has is 0 in the other."""
    pairs = {name: [part[name] for part in (sums, more) if name in part] for name in {**sums, **more}}
    return {name: Band(sum(band.low for band in own), sum(band.high for band in own)) for name, own in pairs.items()}


def scale_band(band: Band, factor: float) -> Band:
    """Return the band of a figure times `factor`, which is above 0."""
    return Band(band.low * factor, band.high * factor)


def rate_band(above: float, below: Band) -> Band:
    """Return the band of an exact figure over one whose band is above 0."""
    return Band(above / below.high, above / below.low)


def ratio_band(one: Band, other: Band) -> Band:
    """Return the band of a ratio of two figures that rest on the same profiles, so that both stand at the same end."""
    return span_of((one.low / other.low, one.high / other.high))


def watts_band(watts: float, joules: Band | None, seconds: Band | None) -> Band | None:
    """Return the band of a mean power: joules over seconds at the same end, and what it is; None if not known."""
    if joules is None or seconds is None or seconds.low <= 0:
        return None
    return span_of((watts, joules.low / seconds.low, joules.high / seconds.high))


def cancelled_share(one: Band, other: Band) -> float:
    """Return how much of the band of two figures' ratio cancels, 0 to 1: that of unrelated figures is the whole."""
    whole = one.high / other.low - one.low / other.high
    ratio = ratio_band(one, other)
    return 1 - (ratio.high - ratio.low) / whole if whole > 0 else 1.0


def describe_ends(chosen: str, at_ends: Mapping[str, str]) -> str:
    """Return for people whether the same is chosen at the ends of the bands, ``low`` and ``high``, or what else is."""
    others = ((end, other) for end, other in at_ends.items() if other != chosen)
    told = (f"at the {'fast' if end == 'low' else 'slow'} end of the bands: {other}" for end, other in others)
    return "; ".join(told) or "the same at both ends of the bands"


def format_band(value: str, band: Band | None, shown: Callable[[float], str] | None = None) -> str:
    """Return a figure for people with its band, where it has one: ``0.40 (0.31 to 0.52)``; `shown` formats the ends."""
    ends = () if band is None else (band.low, band.high)
    texts = [shown(end) if shown is not None else f"{end:.0f}" if abs(end) >= 1000 else f"{end:.3g}" for end in ends]
    return f"{value} ({' to '.join(texts)})" if len(set(texts)) > 1 else value


def format_ratio(value: str, one: Band | None, other: Band | None) -> str:
    """Return a ratio of two figures that rest on the same profiles, with its band and how much of theirs cancels."""
    if one is None or other is None or min(one.low, other.low) <= 0:
        return value
    ends = format_band("", ratio_band(one, other))[2:-1]
    return f"{value} ({ends and f'{ends} times; '}{cancelled_share(one, other):.0%} of their bands cancels)"


def stack_band(figure: str) -> str:
    """Return a figure whose band has lines of its own, for a narrow column."""
    return figure.replace(" (", "\n(").replace(" to ", "\nto ")

"""Numbers for people."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

from host.core.figure_bands import Band, format_band, scale_band

_PREFIXES = {-4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}


def format_number(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, thousands set apart: ``format_number(12345.6) == "12,350"``."""
    if not math.isfinite(value):
        return "not a number"
    if (rounded := float(f"{value:.{digits}g}")) and (abs(rounded) >= 1e12 or abs(rounded) < 1e-3):
        return f"{rounded:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    text = f"{rounded:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_seconds(value: float) -> str:
    """Return a time for people: ``format_seconds(0.0123) == "12.3 ms"``."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= factor or not math.isfinite(value):
            return f"{format_number(value / factor, 3 if factor < 1 else 4)} {unit}"
    return "0 s" if not value else f"{format_number(value / 1e-9, 3)} ns"


def format_ends(band: Band | None, kind: Literal["seconds", "number"] = "number", scale: float = 1.0) -> str:
    """Return a band, times `scale`, to stand behind its figure: `` (310 ms to 520 ms)``; empty without one."""
    shown = format_seconds if kind == "seconds" else partial(format_number, digits=3)
    return format_band("", None if band is None else scale_band(band, scale), shown)


def format_share(saved: float) -> str:
    """Return a saved share for people: ``format_share(0.6) == "60 %"``; below 0 more was used than saved."""
    return f"{format_number(saved * 100, 3)} %" if saved >= 0 else f"none: {format_number(1 - saved, 3)} times as many"


def format_quantity(value: float, unit: str) -> str:
    """Return a figure with its unit and its prefix: ``format_quantity(4e-5, "s") == "40 µs"``."""
    if not unit or not value or 1e-2 <= abs(value) < 1e4:
        return f"{format_number(value)} {unit}".rstrip()
    exponent = max(-4, min(4, math.floor(math.log10(abs(value)) / 3)))
    return f"{format_number(value / 1000.0**exponent)} {_PREFIXES[exponent]}{unit}"

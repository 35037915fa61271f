"""Quantities with units, parsed once at the edge; inside the program everything is in SI base units."""

from __future__ import annotations

import re

from firmware_agent.common.errors import UnitError

_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

BYTES: dict[str, float] = {f"{p}B": f for p, f in (_PREFIXES | _BINARY).items()}
BITS: dict[str, float] = {f"{p}bit": f / 8 for p, f in (_PREFIXES | _BINARY).items()}
SECONDS: dict[str, float] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
}
BYTES_PER_SECOND: dict[str, float] = {f"{unit}/s": factor for unit, factor in (BYTES | BITS).items()}
HERTZ: dict[str, float] = {f"{p}Hz": f for p, f in _PREFIXES.items()}

_QUANTITY = re.compile(r"\s*((?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*")


def parse_quantity(text: object, units: dict[str, float], example: str) -> float:
    """Return `text`, a number followed by one of `units`, in the base unit of that table.

    Args:
        text: for example ``"500 MB/s"``; a bare number is refused, since its unit would be a guess.
        units: unit -> factor to the base unit, for example `BYTES`.
        example: a valid quantity, shown in the error.

    Raises:
        UnitError: the text is no quantity, its unit is missing or of another kind, or the value is not finite.
    """
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise UnitError(f"{text!r} is not a quantity; write a number and a unit, for example {example!r}")
    number, unit = match.groups()
    if unit not in units:
        problem = f"has the unit {unit!r}, which does not fit here" if unit else "has no unit"
        raise UnitError(f"{text!r} {problem}; write for example {example!r} (units: {', '.join(units)})")
    value = float(number) * units[unit]
    if value == float("inf"):
        raise UnitError(f"{text!r} is too large; write for example {example!r}")
    return value


def format_bytes(size_bytes: float) -> str:
    """Return a size for people, in decimal units: ``format_bytes(1_500_000) == "1.5 MB"``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size_bytes) < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"

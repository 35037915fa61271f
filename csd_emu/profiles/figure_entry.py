"""One figure of a profile, as reports show it."""

from __future__ import annotations

import msgspec


class FigureEntry(msgspec.Struct, frozen=True):
    """One figure of a profile: `unit` is empty for a count or ratio, `assumed` where nothing published backs it."""

    figure: str
    value: float
    unit: str
    source: str
    assumed: bool

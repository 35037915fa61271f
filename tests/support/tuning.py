"""Speed tables for tests: sound ones of any shape, and lines."""

import numpy as np
from hypothesis import strategies as st

from host.core.tuning.speed_table import SpeedTable


def line(name: str, fixed: float, slope: float, largest: int = 512) -> SpeedTable:
    """A device whose step takes ``fixed + slope * batch`` seconds."""
    return SpeedTable(name, fixed + slope * np.arange(1, largest + 1))


@st.composite
def speed_tables(draw: st.DrawFn, name: str = "any") -> SpeedTable:
    """Any table that keeps the rules: seconds that grow by jumps, or not at all."""
    largest = draw(st.integers(1, 200))
    jumps = draw(st.lists(st.floats(0, 1), min_size=largest, max_size=largest))
    return SpeedTable(name, draw(st.floats(1e-4, 10)) + np.cumsum(jumps))


__all__ = ["line", "speed_tables"]

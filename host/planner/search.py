"""Every configuration there is, by symmetry: of equal devices only the number matters. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firmware_agent.errors import ConfigurationError
from host.planner.cluster import Counts

MOST_ENUMERATED = 200_000


def enumerate_configurations(least: Sequence[int], most: Sequence[int]) -> Counts:
    """Return (configurations, kinds) all counts from `least` to `most`, without the one that has no device."""
    sizes = [high - low + 1 for low, high in zip(least, most, strict=True)]
    if np.prod(np.array(sizes, float)) > MOST_ENUMERATED:
        raise ConfigurationError("planner: too many configurations")
    grid = np.indices(sizes).reshape(len(sizes), -1).T + np.array(least)
    return np.asarray(grid[grid.sum(axis=1) > 0], np.int64)

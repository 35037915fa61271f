"""Final weights of runs, and how far those of two runs are from each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from firmware_agent.common.slices import Array
from host.monitoring.run_directory import WEIGHTS_FILE


def read_weights(directory: Path) -> dict[str, Array] | None:
    """Return a run's final weights, None if it has left none."""
    path = directory / WEIGHTS_FILE
    return dict(load_file(path)) if path.exists() else None


def difference(one: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    """Return the largest absolute difference of a weight; infinite if they are not of one model, or not finite."""
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return float("inf")
    found = [
        float(np.max(np.abs(one[name].astype(np.float64) - other[name].astype(np.float64)), initial=0.0))
        for name in one
    ]
    return max(found, default=0.0) if np.all(np.isfinite(found)) else float("inf")


def all_finite(weights: Mapping[str, Array]) -> bool:
    """Return whether every weight is a number."""
    return all(bool(np.all(np.isfinite(array))) for array in weights.values())

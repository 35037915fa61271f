"""What runs have left in their folders: records, steps, weights, and how far two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from firmware_agent.common.slices import Array
from host.core.records import Record, RoundRecord, StepRecord, decode_record
from host.monitoring.run_directory import RECORDS_FILE, WEIGHTS_FILE

# How the line of a round begins.
ROUND = b'{"kind":"round"'


def newest(runs: Path) -> Path:
    """Return the newest run directory below `runs`, or one that does not exist: a run may have begun anew."""
    return max((path for path in runs.glob("*") if path.is_dir()), default=runs / "none")


def read_lines(directory: Path) -> list[bytes]:
    """Return the whole lines of a run's records so far, none if it has not begun."""
    path = directory / RECORDS_FILE
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def read_records(directory: Path) -> list[Record]:
    """Return a run's records so far."""
    return [decode_record(line) for line in read_lines(directory)]


def read_rounds(directory: Path) -> list[RoundRecord]:
    """Return the rounds of a run so far."""
    return [record for record in read_records(directory) if isinstance(record, RoundRecord)]


def read_steps(directory: Path) -> list[StepRecord]:
    """Return the synchronous steps of a run's rounds so far."""
    return [step for record in read_rounds(directory) for step in record.steps]


def count_rounds(directory: Path) -> int:
    """Return how many rounds of a run have ended, without reading what is in them."""
    return sum(line.startswith(ROUND) for line in read_lines(directory))


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

"""Batches that stay as they are: the baseline without a tuner, and STANNIS alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from host.tuning.base import Batches, Floats, Retune
from host.tuning.speed import SpeedTable


class FixedBatches:
    """A `Tuner` that never retunes; it only knows who is there."""

    def __init__(
        self,
        batches: Sequence[int],
        tables: Sequence[SpeedTable] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        """Take the batches, in participant order; with `tables` it can say what is possible, with `names` of whom."""
        self._names = list(names) if names is not None else [f"device {number}" for number in range(len(batches))]
        self._initial = np.array(batches, np.int64)
        self._here = np.ones(len(batches), bool)
        self._tables = tables

    @property
    def batches(self) -> Batches:
        """(devices,) records per step; 0 for a device that is gone."""
        return np.where(self._here, self._initial, 0)

    @property
    def slowdowns(self) -> Floats:
        """(devices,) ones: nothing is observed."""
        return np.ones(len(self._initial))

    def probes(self, step: int) -> Batches:
        """Return zeros: nobody is parked."""
        return np.zeros(len(self._initial), np.int64)

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        """Return None."""
        return None

    def leave(self, device: int) -> Retune:
        """Note that a device is gone."""
        return self._set(device, False, "left")

    def join(self, device: int) -> Retune:
        """Note that a device is back."""
        return self._set(device, True, "is back")

    def possible_images_per_second(self) -> float:
        """Return what the tables expect of the batches, undisturbed; 0 without tables."""
        if self._tables is None or not self.batches.any():
            return 0.0
        seconds = [table.seconds(int(batch)) for table, batch in zip(self._tables, self.batches, strict=True)]
        return float(self.batches.sum()) / max(seconds)

    def state(self) -> dict[str, Any]:
        """Return who is there."""
        return {"here": self._here.tolist()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self._here = np.array(state["here"], bool)

    def _set(self, device: int, here: bool, what: str) -> Retune:
        self._here[device] = here
        return Retune(self.batches, (device,), self.slowdowns, f"{self._names[device]} {what}", 0.0)

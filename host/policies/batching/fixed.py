"""Batches that stay as they are: the baseline without a tuner, and STANNIS alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from csd_emu.util.renamed import old_method
from host.config.plugins.kinds import TUNER
from host.core.tuning.batch_tuner import Batches, Floats, Retune
from host.core.tuning.speed_table import SpeedTable


@TUNER.register("none", "Every device has the job's `batch_size`.")
@TUNER.register("stannis", "Batches with which all devices finish a step together, planned once.")
class FixedBatches:
    """A `BatchTuner` that never retunes by itself; it only tracks which devices are present. A base for your own."""

    def __init__(
        self,
        batches: Sequence[int] | Batches,
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

    def retune(self, batches: Batches, reason: str, gain_steps: float = 0.0) -> Retune:
        """Have other `batches` from now on, and return what says so: for a tuner that derives from this one.

        Args:
            batches: (devices,) records per step; a device that is gone keeps what it had, for when it is back.
            reason: for people.
            gain_steps: what it is expected to win, in steps of the present length.
        """
        before = self.batches
        self._initial = np.where(self._here, np.array(batches, np.int64), self._initial)
        changed = np.flatnonzero(before != self.batches)
        return Retune(self.batches, tuple(map(int, changed)), self.slowdowns, reason, gain_steps)

    def possible_records_per_second(self) -> float:
        """Return what the tables expect of the batches, undisturbed; 0 without tables."""
        if self._tables is None or not self.batches.any():
            return 0.0
        seconds = [table.seconds(int(batch)) for table, batch in zip(self._tables, self.batches, strict=True)]
        return float(self.batches.sum()) / max(seconds)

    possible_images_per_second = old_method("possible_images_per_second", possible_records_per_second)

    def state(self) -> dict[str, Any]:
        """Return who is there, and with which batches."""
        return {"here": self._here.tolist(), "batches": self._initial.tolist()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self._here = np.array(state["here"], bool)
        self._initial = np.array(state.get("batches", self._initial), np.int64)

    def _set(self, device: int, here: bool, what: str) -> Retune:
        self._here[device] = here
        return Retune(self.batches, (device,), self.slowdowns, f"{self._names[device]} {what}", 0.0)

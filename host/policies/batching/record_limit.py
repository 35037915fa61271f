"""Wrapper that limits a tuner's records per step to what the host's part of a cut model has memory for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from host.core.tuning.batch_tuner import Batches, BatchTuner, Floats, Retune
from host.core.tuning.speed_table import SpeedTable


def limit(batches: Batches, most_records: int) -> Batches:
    """Return (devices,) batches that are no more than `most_records` together, in the same proportions; rounded down.

    Who has a record keeps one, if there is room for so many.
    """
    if (total := int(batches.sum())) <= most_records:
        return batches
    kept = (batches > 0).astype(np.int64)
    if (spare := most_records - int(kept.sum())) < 0:
        return batches * most_records // total
    return np.asarray(kept + (batches - kept) * spare // max(1, total - int(kept.sum())))


class LimitedTuner:
    """A `BatchTuner` around another, which believes that devices have the batches that it asked for.

    It is told seconds as if they had: what was observed, times what its tables say of the batch that it asked for over
    what they say of the one that was had.
    """

    def __init__(
        self, tuner: BatchTuner, tables: Sequence[SpeedTable], most_records: int, tell: Callable[[str], None]
    ) -> None:
        """Hold `tuner` to so many records per step; `tell` is told of each retune that asks for more."""
        self._tuner, self._tables, self._most, self._tell = tuner, list(tables), most_records, tell
        self._told: list[int] = []

    @property
    def batches(self) -> Batches:
        """(devices,) records per step as of now."""
        return limit(self._tuner.batches, self._most)

    @property
    def slowdowns(self) -> Floats:
        """(devices,) as the tuner believes."""
        return self._tuner.slowdowns

    def probes(self, step: int) -> Batches:
        """See `BatchTuner`; nothing of them comes to the host's part."""
        return self._tuner.probes(step)

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        """See `BatchTuner`."""
        asked = self._tuner.batches
        factors = [
            table.seconds(int(want)) / table.seconds(int(had)) if had else 1.0
            for table, want, had in zip(self._tables, asked, limit(asked, self._most), strict=True)
        ]
        retune = self._tuner.observe(step, compute_seconds * np.array(factors), steps_left)
        return None if retune is None else self._limited(retune)

    def leave(self, device: int) -> Retune:
        """See `BatchTuner`."""
        return self._limited(self._tuner.leave(device))

    def join(self, device: int) -> Retune:
        """See `BatchTuner`."""
        return self._limited(self._tuner.join(device))

    def possible_records_per_second(self) -> float:
        """Return what the tuner holds for possible."""
        return self._tuner.possible_records_per_second()

    def state(self) -> dict[str, Any]:
        """Return the tuner's state; the limit is the run's."""
        return self._tuner.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self._tuner.load_state(state)

    def _limited(self, retune: Retune) -> Retune:
        if (given := limit(retune.batches, self._most)) is retune.batches:
            return retune
        if retune.batches.tolist() != self._told:  # once, however often it is asked for
            self._told = retune.batches.tolist()
            self._say(retune.batches, given)
        return replace(retune, batches=given)

    def _say(self, asked: Batches, given: Batches) -> None:
        self._tell(
            f"a retune asked for {int(asked.sum())} records a step, and the host's part of the model has room "
            f"for {self._most}: batches are {given.tolist()} in place of {asked.tolist()}"
        )

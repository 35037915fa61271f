"""A tuner in few lines: a device that is late three steps in a row gets half of its batch."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from csd_emu.extend import Batches, FixedBatches, Floats, Retune, SpeedTable

Limit = Annotated[float, Field(gt=1)]


class StepDown(FixedBatches):
    """Halves the batch of a device whose steps take more than `limit` times those of most devices."""

    def __init__(self, batches: Batches, tables: Sequence[SpeedTable], names: Sequence[str], limit: Limit = 1.5):
        """Take batches, tables and names from the run, `limit` from the job file."""
        super().__init__(batches.tolist(), tables, names)
        self._limit, self._late = limit, np.zeros(len(batches), int)

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        """Take what a step cost; return new batches if a device has been late for long enough."""
        usual = np.nanmedian(compute_seconds)  # of a device that returned nothing it is NaN
        self._late = np.where(compute_seconds > self._limit * usual, self._late + 1, 0)
        if not (slow := self._late >= 3).any():
            return None
        self._late[slow] = 0
        return self.retune(np.where(slow, (self.batches + 1) // 2, self.batches), f"slow in step {step}")

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON can hold it."""
        return super().state() | {"late": self._late.tolist()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state(state)
        self._late = np.array(state["late"])

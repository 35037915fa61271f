"""Speed tables: records per second of a class of devices by batch size. Numbers in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from csd_emu.util.renamed import old_method
from firmware_agent.common.errors import ConfigurationError

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SpeedTable:
    """Compute seconds of a step against its batch size, of one class of devices.

    Attributes:
        name: of the class, a profile's.
        step_seconds: (largest_batch,) float64; ``step_seconds[b - 1]`` is tau(b), the device seconds in which one step
            of b records computes: forward, backward and encoding. Positive, finite, never falling.
        error: relative error estimate of them; NaN if it is not known.
    """

    name: str
    step_seconds: Seconds
    error: float = float("nan")

    def __post_init__(self) -> None:
        """Check the seconds.

        Raises:
            ConfigurationError: there are none, or one is not positive, not finite, or less than the one before.
        """
        seconds = self.step_seconds
        if seconds.ndim != 1 or not len(seconds):
            raise ConfigurationError(f"{self.name}: no batch size fits this device; give it memory, or leave it out")
        if not (np.all(np.isfinite(seconds)) and np.all(seconds > 0) and np.all(np.diff(seconds) >= 0)):
            raise ConfigurationError(
                f"{self.name}: seconds per step must be positive numbers that never fall with the batch; measure again"
            )

    @property
    def largest_batch(self) -> int:
        """The largest batch that the device's memory holds."""
        return len(self.step_seconds)

    def seconds(self, batch_size: int) -> float:
        """Return tau(b), 0 for a batch of 0.

        Raises:
            ConfigurationError: the batch is negative, or does not fit into memory.
        """
        if not 0 <= batch_size <= self.largest_batch:
            raise ConfigurationError(
                f"{self.name}: a batch of {batch_size} is not between 0 and {self.largest_batch}, what its memory holds"
            )
        return float(self.step_seconds[batch_size - 1]) if batch_size else 0.0

    def records_per_second(self, batch_size: int) -> float:
        """Return s(b) = b / tau(b)."""
        return batch_size / self.seconds(batch_size) if batch_size else 0.0

    images_per_second = old_method("images_per_second", records_per_second)

    def largest_within(self, seconds: float, slowdown: float = 1.0) -> int:
        """Return max{b : slowdown * tau(b) <= seconds}; 0 if not even one record is done in time.

        Args:
            seconds: device seconds of a step.
            slowdown: what the device's seconds are multiplied by, observed over expected.
        """
        return int(np.searchsorted(self.step_seconds, seconds / slowdown, side="right"))

    def knee(self, epsilon: float) -> int:
        """Return min{b : s(b) >= (1 - epsilon) max s}: from there on a larger batch is hardly faster."""
        return int(np.argmax(self._rates >= (1 - epsilon) * self._rates.max())) + 1

    @cached_property
    def _rates(self) -> Seconds:
        """(largest_batch,) records per second of each batch."""
        return np.asarray(np.arange(1, self.largest_batch + 1) / self.step_seconds)

"""How many retunes a change of an array's speeds is worth. Pure."""

from __future__ import annotations

import numpy as np

from host.core.tuning.batch_tuner import Floats
from host.policies.batching.detector import Flags

# Log of a slowdown, since the last clear change of a device, that is another one: so many times what the levels of the
# array move by without one (a mean of some of the last such moves), but between these bounds.
CLEAR, CLEAR_MOVES, MOVES_MEMORY = (0.2, 0.35), 3.5, 8
# A device that has clearly become slower leaves so many retunes more, `MOST` in all; one that was and has clearly
# become faster leaves `FASTER` at least, for its way back.
SLOWER, MOST, FASTER = 3.0, 4.0, 1.0
# With less than so many left nothing is done but the way back: devices get what they had in the plan again.
LAST = 2.0
# With `MOST` retunes left the next one has to make the array faster by this share, with each less by so many times as
# much. The way back has to win a `BACK_OFF`th of it.
MIN_GAIN, BACK_OFF = 0.005, 3.0
# One is left again after so many steps without a retune or a clear change.
REST_STEPS = 600


class RetuneBudget:
    """Retunes that are left to many arrays until a device's speed clearly changes.

    Attributes:
        left: (rows,) how many.
        faster: (rows, devices) which were clearly slow and have become faster, and not had part in a retune since.
        moves: (rows,) mean of what levels were off their references at changes that were not clear.
        reference: (rows, devices) level at the last clear change, or after the last retune that the device had part in.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        """Begin with all as fast as their tables, and with what a change leaves: how far they are off is to be seen."""
        self.left, self.faster, self.moves, self.reference = (
            np.full(shape[0], SLOWER),
            np.zeros(shape, dtype=np.bool_),
            np.zeros(shape[0]),
            np.zeros(shape),
        )

    def observe(self, changed: Flags, level: Floats, early: Flags, settled: Flags) -> None:
        """Take the levels after a step; what is seen of a new batch (`early`) is no change of the device.

        The end of a drift (`settled`) is one.
        """
        self.left += np.where(self.left < LAST, 1 / REST_STEPS, 0.0)
        rise = np.where(changed & ~early, level - self.reference, 0.0)
        clear = np.clip(CLEAR_MOVES * self.moves, *CLEAR)[:, None]
        self.left = np.where((rise >= clear).any(axis=1), np.minimum(MOST, self.left + SLOWER), self.left)
        self.faster |= (faster := ((rise <= -clear) | settled) & (self.reference >= clear))
        self.left = np.where(faster.any(axis=1), np.maximum(self.left, FASTER), self.left)
        small = np.where(np.abs(rise) < clear, np.abs(rise), 0.0).max(axis=1)
        self.moves += np.where(small > 0, small - self.moves, 0.0) / MOVES_MEMORY
        self.reference = np.where((np.abs(rise) >= clear) | (changed & early), level, self.reference)

    def least_gain(self, row: int, which: Flags, returns: bool, home: bool) -> float:
        """Return the share of its rate that the next retune of an array has to win.

        Args:
            row: which array.
            which: (devices,) those that get other batches.
            returns: whether it only gives them records back.
            home: whether all devices have their batches of the plan then.
        """
        if self.left[row] < (FASTER if (back := returns and (home or bool(self.faster[row, which].any()))) else LAST):
            return np.inf
        return float(MIN_GAIN * BACK_OFF ** (-back if returns else MOST - self.left[row]))

    def spend(self, row: int, which: Flags, level: Floats) -> None:
        """Take note of a retune of some devices, whose levels are what is expected of their new batches."""
        self.left[row], self.faster[row] = max(np.floor(self.left[row]) - 1, 0.0), self.faster[row] & ~which
        self.reference[row] = np.where(which, level[row], self.reference[row])

    def grant(self, row: int) -> None:
        """Leave enough to take back what was tried, as it was not over yet, and for the way back."""
        self.left[row] = max(self.left[row], LAST)

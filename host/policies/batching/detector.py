"""Detector of devices that became slower or faster than believed. For arrays of devices of any shape at once. Pure.

Watched is x = log(observed seconds / the table's), per device; its *level* L is what is believed, and r = x - L the
residual of a step. sigma is the device's own noise: a mean over some `NOISE_MEMORY` steps of |r_t - r_(t-1)| over 1.128
(the mean of |difference| of two normal numbers is 1.128 sigma), each difference clipped at three times its present
value. Differences see neither a table's constant error nor a slow drift. Three tests run side by side.

*Jumps.* A device has changed when `window` residuals in a row lie beyond the threshold h = max(log(1 + threshold),
3 sigma) on the same side. Its new level is the mean of these steps but the first, which may have been disturbed in
part. With normal noise and h = 3 sigma, one step of one device raises a false alarm with 2 (1 - Phi(3))^3 = 5e-9
probability: 4e-4 in 2,000 steps of 37 devices. With 1 % noise the floor of 8 % is 8 sigma, and it is nil.

*Small jumps.* The same with `window` + `MORE_STEPS` residuals (8) beyond max(`SMALL_FLOOR`, 1.5 sigma): 8e-10. While
the last residuals are beyond h it is left open which of the two it is.

*Offsets.* What is smaller yet (a table's error, a slow drift, a first estimate from few steps) is told by the mean m of
the residuals within h since the level was set (of the last `OFFSET_MEMORY`, about), each clipped at twice what it would
take. For n >= `OFFSET_STEPS` residuals the level moves by m once |m| > max(`OFFSET_FLOOR`, 2.5 sigma / sqrt(n)). It
only moves a belief; whether batches follow is for the gain to say.

*A blip never counts.* One that is shorter than the window fills neither window, and two clipped residuals in
`OFFSET_STEPS` are a mean of a third of the floor at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

DEVIATIONS = 3.0
SMALL_FLOOR, SMALL_DEVIATIONS, MORE_STEPS = 0.025, 1.5, 5
NOISE_START = 0.02
NOISE_FLOOR = 0.002
NOISE_MEMORY = 16
OFFSET_FLOOR = 0.015
OFFSET_DEVIATIONS = 2.5
OFFSET_STEPS = 12
OFFSET_MEMORY = 32
_MEAN_DIFFERENCE = 1.128


@dataclass(frozen=True)
class SpeedChanges:
    """What one step told.

    Attributes:
        jumped: devices whose level was set anew, `window` steps after they changed.
        moved: devices whose level moved by the mean of its residuals.
    """

    jumped: Flags
    moved: Flags

    @property
    def any(self) -> Flags:
        """Devices whose level is another one now."""
        return self.jumped | self.moved


class Detector:
    """Levels of many devices. All arrays have the shape that it was made with.

    Attributes:
        level: log of believed seconds over the table's; 0 is as fast as the table.
        noise: standard deviation of a residual.
        agreed: devices that have been as slow as believed, or slower as well as faster, since they have their batch.
    """

    def __init__(self, shape: tuple[int, ...], threshold: float, window: int) -> None:
        """Believe in the tables.

        Args:
            shape: of the devices' arrays.
            threshold: a step that takes this share longer or shorter than believed may be part of a jump.
            window: so many in a row, the same way, are one.
        """
        self._floor = float(np.log1p(threshold))
        self.level = np.zeros(shape)
        self.noise = np.full(shape, NOISE_START)
        self.agreed = np.zeros(shape, dtype=np.bool_)
        self._previous = np.full(shape, np.nan)
        self._skipped = np.zeros(shape, dtype=np.bool_)
        self._large, self._small = _Run(shape, window), _Run(shape, window + MORE_STEPS)
        self._mean = np.zeros(shape)
        self._count = np.zeros(shape)

    def estimate(self, row: int | EllipsisType = ...) -> Floats:
        """Return the level and the mean of what was seen since, of all or of one row; a table's level is 0 exactly."""
        level = self.level[row]
        return np.where(level == 0, 0.0, level + self._mean[row])

    def standard_error(self, row: int | EllipsisType = ...) -> Floats:
        """Return that of the estimate, sigma / sqrt(n), of all or of one row; 0 where it is the table's, unobserved."""
        steps = np.clip(self._count[row], 1, OFFSET_MEMORY)
        return np.where(self.level[row] == 0, 0.0, self.noise[row] / np.sqrt(steps))

    @property
    def thresholds(self) -> Floats:
        """Beyond which a residual may be part of a jump."""
        return np.maximum(self._floor, DEVIATIONS * self.noise)

    @property
    def deviating(self) -> Flags:
        """Devices whose last observed steps were beyond the threshold, not yet for a whole window."""
        return np.asarray(self._large.length != 0)

    @property
    def longest(self) -> npt.NDArray[np.int64]:
        """(rows,) how many steps in a row a device of each has been deviating for, the most of them."""
        return np.asarray(np.abs(self._large.length).max(axis=-1))

    def observe(self, log_ratio: Floats) -> SpeedChanges:
        """Take log(observed / the table's seconds) of one step; NaN, for nothing observed, changes nothing."""
        here = np.isfinite(log_ratio)
        seen, run = here & ~self._skipped, self._large.length
        self._skipped &= ~here
        residual = np.where(seen, log_ratio, self.level) - self.level
        limit = self.thresholds
        small_limit = np.maximum(SMALL_FLOOR, SMALL_DEVIATIONS * self.noise)
        large, small = (  # no small jump where one may be about to be seen
            self._large.observe(residual, limit, seen),
            self._small.observe(residual, small_limit, seen) & (self._large.length == 0),
        )
        inside = seen & (np.abs(residual) <= limit)
        self._learn_noise(residual, seen, np.abs(self._large.length) <= 1)
        moved = self._average(residual, inside)
        jumped: Flags = large | small
        self.agreed |= inside | jumped | (run * self._large.length < 0)
        if jumped.any():
            self._set(
                np.where(large, self._large.mean(limit), self._small.mean(small_limit)),
                jumped,
                self._large,
                self._small,
            )
        return SpeedChanges(jumped, moved)

    def reset(self, which: Flags) -> None:
        """Forget what was observed of some devices: believe in their tables."""
        self.level[which], self.noise[which], self._previous[which] = 0.0, NOISE_START, np.nan
        self._skipped[which] = False
        for array in (self._mean, self._count):
            array[which] = 0
        self._large.clear(which)
        self._small.clear(which)

    def skip_next(self, which: Flags, row: int | EllipsisType = ...) -> None:
        """Pass over the next step of some devices, of all or of one row.

        A drive's first step with a new batch takes up to a tenth longer, and says nothing of its speed.
        """
        self._skipped[row] |= which
        self.agreed[row] &= ~which

    def believe(self, at: tuple[int, int], level: float) -> None:
        """Take a device for as slow as this from its next step on, of which nothing has been seen yet."""
        self.level[at], self._previous[at], self._mean[at], self._count[at] = level, np.nan, 0.0, 0.0

    def state(self) -> dict[str, list[float | None]]:
        """Return all that it knows, as flat lists with None for NaN."""
        return {
            name: [None if np.isnan(value) else float(value) for value in array.ravel()]
            for name, array in self._arrays().items()
        }

    def load_state(self, state: Mapping[str, Sequence[float | None]]) -> None:
        """Take what `state` returned."""
        for name, array in self._arrays().items():
            if name in state:  # else it is of the release before
                array[...] = np.array(state[name], dtype=np.float64).reshape(array.shape).astype(array.dtype)

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        own = {
            "level": self.level,
            "noise": self.noise,
            "agreed": self.agreed,
            "previous": self._previous,
            "skipped": self._skipped,
        }
        runs = {"large": self._large, "small": self._small}
        parts = {
            f"{name}_{part}": getattr(run, part) for name, run in runs.items() for part in ("length", "total", "least")
        }
        return own | {"mean": self._mean, "count": self._count} | parts

    def _learn_noise(self, residual: Floats, seen: Flags, usual: Flags) -> None:
        difference = np.abs(residual - self._previous) / _MEAN_DIFFERENCE
        usable = seen & usual & np.isfinite(difference)
        step = (np.minimum(np.where(usable, difference, 0.0), 3 * self.noise) - self.noise) / NOISE_MEMORY
        self.noise = np.where(usable, np.maximum(self.noise + step, NOISE_FLOOR), self.noise)
        self._previous = np.where(seen, np.where(usual, residual, np.nan), self._previous)

    def _average(self, residual: Floats, which: Flags) -> Flags:
        clip = np.maximum(2 * OFFSET_FLOOR, 2 * self.noise)
        self._count = self._count + which
        weight = 1 / np.clip(self._count, 1, OFFSET_MEMORY)
        self._mean = np.where(which, self._mean + weight * (np.clip(residual, -clip, clip) - self._mean), self._mean)
        needed = OFFSET_DEVIATIONS * self.noise / np.sqrt(np.clip(self._count, 1, OFFSET_MEMORY))
        moved: Flags = which & (self._count >= OFFSET_STEPS) & (np.abs(self._mean) > np.maximum(OFFSET_FLOOR, needed))
        if moved.any():
            self.level = np.where(moved, self.level + self._mean, self.level)
            self._previous = np.where(moved, np.nan, self._previous)
            self._mean = np.where(moved, 0.0, self._mean)
        return moved

    def _set(self, by: Floats, which: Flags, *runs: _Run) -> None:
        steps = np.maximum(1, np.abs(runs[1].length) - 1)
        self.level = np.where(which, self.level + by, self.level)
        self._previous = np.where(which, np.nan, self._previous)
        self._count = np.where(which, steps, self._count)
        self._mean[which] = 0
        for run in runs:
            run.clear(which)


class _Run:
    """Residuals in a row beyond a limit on the same side.

    Attributes:
        length: how many, negative for faster than believed.
        total, least: sum of them but the first, and the size of the smallest of these.
    """

    def __init__(self, shape: tuple[int, ...], window: int) -> None:
        self._window = window
        self.length, self.total, self.least = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape)

    def mean(self, limit: Floats) -> Floats:
        """Return that of the residuals but the first; of that one if there is no other.

        It is beyond the smallest by half the limit at most: a blip among what is a little off does not make the level.
        """
        return np.asarray(
            np.clip(self.total / np.maximum(1, np.abs(self.length) - 1), -(most := self.least + limit / 2), most)
        )

    def observe(self, residual: Floats, limit: Floats, seen: Flags) -> Flags:
        """Take a step's residuals; return where the window is full."""
        side = np.where(np.abs(residual) > limit, np.sign(residual), 0).astype(np.int64)
        goes_on = side * self.length > 0
        counted = goes_on | (self._window == 1)
        self.total = np.where(seen, np.where(counted, self.total * goes_on + residual, 0.0), self.total)
        # A run of one step has no smallest yet.
        self.least = np.where(
            seen & counted,
            np.minimum(np.where(np.abs(self.length) <= 1, np.inf, self.least), np.abs(residual)),
            self.least,
        )
        self.length = np.where(seen, np.where(goes_on, self.length + side, side), self.length)
        return seen & (np.abs(self.length) >= self._window)

    def clear(self, which: Flags) -> None:
        """Begin anew."""
        self.length[which], self.total[which], self.least[which] = 0, 0.0, 0.0

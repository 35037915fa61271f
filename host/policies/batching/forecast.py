"""HyperTune's forecast: how long things last and where a drift leads. Arrays: (rows, devices). Pure."""

from __future__ import annotations

import numpy as np

from host.core.tuning.batch_tuner import Floats
from host.policies.batching.detector import Flags

# How long a disturbance is taken to last, before any has ended.
PRIOR_STEPS = 64.0
# So long after a change an array is thought over again (estimates are better, and it has lasted), then twice as long.
RECHECK_STEPS = 16
# A device that became slower twice within so many steps, by about as much and without recovering, is drifting: it is
# expected to be where the same rate leads so much later.
DRIFT_STEPS, LOOKAHEAD_STEPS, ABOUT = 40, 24, 3.0
# What comes in one jump is no drift, in log seconds: a drift is seen in small ones.
MOST_RISE = 0.25
# Of a drift that is foreseen, in log seconds.
MOST_LEAD = 1.0


class Durations:
    """Mean lengths of disturbances and of quiet times, per array.

    Lengths are taken for exponential: the mean is all device-steps of a kind over how often it ended, with one
    disturbance and one quiet time of `PRIOR_STEPS` that ended as the prior. What goes on counts for as long as it has
    lasted.

    Attributes:
        recheck: (rows, 2) step after which an array is thought over without a new cause, and how long after the last.
    """

    def __init__(self, rows: int) -> None:
        """Know nothing."""
        self.steps = np.full((rows, 2), PRIOR_STEPS)
        self.ends = np.ones((rows, 2))
        self.recheck = np.full((rows, 2), RECHECK_STEPS, dtype=np.int64)

    def observe(self, was_off: Flags, off: Flags, alive: Flags) -> None:
        """Take which devices were off their tables' speeds before a step and are after it, of those that live."""
        self.steps += np.stack([(off & alive).sum(axis=1), (~off & alive).sum(axis=1)], axis=1)
        self.ends += np.stack([(was_off & ~off & alive).sum(axis=1), (~was_off & off & alive).sum(axis=1)], axis=1)

    def expected_steps(self, row: int, disturbed: bool) -> float:
        """Return how long a disturbance, or a quiet time, lasts in an array."""
        return float(self.steps[row, 0 if disturbed else 1] / self.ends[row, 0 if disturbed else 1])


class Drifts:
    """Devices that keep becoming slower.

    Attributes:
        lead: how much slower than believed a device is expected to be in a while, as a log; 0 for one without a drift.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Know nothing."""
        self.slowed_at = np.full(shape, -DRIFT_STEPS - 1, dtype=np.int64)
        self.slowed_by = np.zeros(shape)
        self.lead = np.zeros(shape)

    def observe(self, step: int, changed: Flags, rise: Floats) -> Flags:
        """Take by how much levels rose in a step where they changed; return for which devices a drift is over."""
        slower, since = changed & (rise > 0), step - self.slowed_at
        alike = (rise < ABOUT * self.slowed_by) & (self.slowed_by < ABOUT * rise)
        drifting = slower & alike & (since <= DRIFT_STEPS) & (rise <= MOST_RISE)
        ahead = np.minimum(LOOKAHEAD_STEPS * rise / np.maximum(1, since), MOST_LEAD)
        over: Flags = (self.lead > 0) & ~changed & (since > DRIFT_STEPS)
        self.lead = np.where(changed, np.where(drifting, ahead, 0.0), np.where(over, 0.0, self.lead))
        self.slowed_at[slower], self.slowed_by[slower] = step, rise[slower]
        faster = changed & (rise < 0)
        self.slowed_at[faster], self.slowed_by[faster] = -DRIFT_STEPS - 1, 0.0
        return over

    def reset(self, which: Flags) -> None:
        """Forget some devices' pasts."""
        self.slowed_at[which], self.slowed_by[which], self.lead[which] = -DRIFT_STEPS - 1, 0.0, 0.0

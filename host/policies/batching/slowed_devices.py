"""What is known of disturbed devices at several batches: a line from one observed batch to the next. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from host.core.tuning.batch_tuner import Floats
from host.policies.batching.detector import Flags
from host.policies.batching.retune_budget import RetuneBudget

# What is seen within so many steps of a new batch comes from that batch, and contradicts no other.
EARLY_STEPS = 14
# Whether a disturbance that the present batch does not show is over is tried at once; after a try that failed `LONGER`
# times so many steps later, and after each further one `LONGER` times as late.
FIRST_WAIT_STEPS, LONGER = 8, 3
# So many batches of a device are remembered, the last ones.
MOST_SEEN = 4
# Standard error of a level beside its own, for noise of neighbouring steps is not independent; and how it grows with
# the log of the distance from what was seen.
LEAST_ERROR, DOUBT_BEYOND = 0.02, 0.05
# Batches whose seconds differ by less, as a log, say nothing of a slope; nor do levels within so many standard errors.
# From one batch to another a level may change by so many times the difference of their seconds, as a log.
APART, ALIKE, STEEPEST = 0.15, 2.0, 2.0

Seen = tuple[float, float]


@dataclass
class SlowedDevice:
    """A device that is off its table, since it got another batch for that.

    Attributes:
        seen: batch -> log of observed over table seconds, and its standard error; without the present batch.
        due: step in which it is tried whether it is over, if the present batch does not show that.
        wait: steps from one try to the next.
        trial: the batch with which it is tried, 0 if it is not.
    """

    seen: dict[int, Seen] = field(default_factory=dict)
    due: int = 0
    wait: int = FIRST_WAIT_STEPS
    trial: int = 0

    def see(self, batch: int, level: float, error: float) -> None:
        """Remember what a batch took."""
        self.seen.pop(batch, None)
        self.seen[batch] = level, error
        if len(self.seen) > MOST_SEEN:
            del self.seen[next(iter(self.seen))]

    def slowed(self, least: float) -> list[int]:
        """Return the batches that were seen off their table by `least`, a log, or more."""
        return [batch for batch, (level, _) in self.seen.items() if level >= least]

    def may_explain(self, jump: float, table: Floats, batch: int) -> bool:
        """Return whether a jump of the level, a log, may come from a new batch: it is far enough from all seen before.

        Always while it is tried whether the disturbance is over, and after a try that failed.
        """
        present = table[max(1, batch) - 1]
        return (
            self.trial > 0
            or self.wait > FIRST_WAIT_STEPS
            or all(abs(np.log(present / table[other - 1])) >= max(APART, jump / STEEPEST) for other in self.seen)
        )

    def put_off(self, step: int, factor: int = LONGER) -> None:
        """Have the next try later, after a wait that is `factor` times as long."""
        self.trial, self.wait = 0, self.wait * factor
        self.due = step + self.wait


class SlowedDevices:
    """Those of many arrays' devices.

    Attributes:
        known: by array and device.
        changed_at: (rows, devices) step since which each has its present batch.
        budget: retunes that are left for them.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        """Know of none."""
        self.known: dict[tuple[int, int], SlowedDevice] = {}
        self.changed_at, self.budget = np.zeros(shape, dtype=np.int64), RetuneBudget(shape)

    def of_row(self, row: int) -> Iterator[tuple[int, SlowedDevice]]:
        """Yield the devices of an array that have one, and theirs."""
        return ((device, each) for (where, device), each in self.known.items() if where == row)

    def forget(self, which: Flags) -> None:
        """Forget what is known of some devices."""
        self.known = {where: each for where, each in self.known.items() if not which[where]}

    def tried(self, row: int) -> Flags:
        """Return of which devices of an array it is tried whether a disturbance is over."""
        return np.isin(np.arange(self.changed_at.shape[1]), [device for device, each in self.of_row(row) if each.trial])

    def hidden(self, level: Floats) -> Flags:
        """Return which devices are disturbed although their present batches do not show it."""
        flags = np.zeros(level.shape, dtype=np.bool_)
        for where, each in self.known.items():
            flags[where] = not each.trial and level[where] == 0
        return flags

    def dump(self) -> list[list[Any]]:
        """Return what is known of the first array, in JSON's types."""
        return [
            [device, [[batch, *seen] for batch, seen in each.seen.items()], each.due, each.wait, each.trial]
            for device, each in self.of_row(0)
        ]

    def load(self, state: list[list[Any]]) -> None:
        """Take what `dump` returned."""
        self.known = {
            (0, device): SlowedDevice({int(batch): (level, error) for batch, level, error in seen}, due, wait, trial)
            for device, seen, due, wait, trial in state
        }


def fit_levels(table: Floats, points: Mapping[int, Seen]) -> tuple[Floats, Floats]:
    """Return what is believed of every batch, from what was seen of some: logs over the table's seconds, and errors.

    With one batch seen the device is slower by one factor. With more its seconds are a line against the table's from
    one to the next, and beyond them the line of the last two goes on: an offset and a slope. That is exact for what is
    added to every step and for what makes records beyond the first slower. Where these two are as slow as each other,
    for all that is known, one factor goes on. Never less than the table's, or than a factor seen below 1.

    Args:
        table: (batches,) seconds of batches from 1 on, never falling.
        points: batch -> log of its seconds over the table's, and the standard error of that; the last one seen last.

    Returns:
        (batches,) each.
    """
    kept: list[int] = []
    for batch in reversed([*points]):  # of those that are near each other the last one
        if all(abs(np.log(table[batch - 1] / table[other - 1])) >= APART for other in kept):
            kept.append(batch)
    kept.sort()
    at, (levels, errors) = table[np.array(kept) - 1], np.array([points[batch] for batch in kept]).T
    if len(at) == 1:
        return np.full(len(table), levels[0]), np.full(len(table), errors[0])
    seconds = np.maximum.accumulate(at * np.exp(levels))
    errors, inside = np.hypot(errors, LEAST_ERROR), np.clip(table, at[0], at[-1])
    differ = np.abs(np.diff(levels)) > ALIKE * np.hypot(errors[:-1], errors[1:])
    slopes = np.where(differ[[0, -1]], (np.diff(seconds) / np.diff(at))[[0, -1]], (seconds / at)[[0, -1]])
    line = np.interp(table, at, seconds) + (table - inside) * np.where(table < at[0], *slopes)
    line = np.maximum(line, table * min(1.0, float(np.exp(levels.min()))))
    errors = np.interp(table, at, errors) + DOUBT_BEYOND * np.abs(np.log(table / inside))
    return np.log(line / table), errors

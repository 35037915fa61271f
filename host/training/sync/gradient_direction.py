"""Gradients that point against the training, step after step: a flipped sign, told from unlike data. Pure.

Some coordinates of each drive's gradient, drawn once from a seed, are summed over a window of `WINDOW` steps, so that
the noise of small batches goes and what the drive stands for is left: M_i, and M of all by their records. A drive is
accused when in `EARLY_WINDOWS` of the training's first `EARLY` windows, or in `LATE_WINDOWS` in a row later on,

* cos(M_i, median of the others') is below `AGAINST`,
* each other's cosine with the median of the rest, the accused left out, is above `AGREED` in the mean: they have a
  direction to be against,
* the cosine between M_i of every second step and M of the others is below `AGAINST_ALL`. Taken over different steps the
  noise of M_i, which is in M too, does not count for it,
* its own loss does not rise by more than its noise, within the window or since the one before.

The second keeps drives of disjoint classes from being accused, where everybody is against everybody. The last two are
for the honest drive with records that nobody else has. Its gradient opposes the others', but its own is in M: near the
start it is the longest, and later M is small, for the gradients of all balance. And if M does move the weights against
what a gradient says for long, then the loss that it is the gradient of has to rise. Whoever flips a sign reports a loss
that falls as the others train; that one could lie about its loss, too, and is then taken for odd, not for hostile.
Once a training has converged what is left is noise, and more windows are asked for.

Where records were dealt out evenly at random nobody's are unlike the others', and in the first windows, while gradients
are large, the last two are not asked for.

Tried with `digits_cnn` (learning rate 0.05, momentum 0.9) on n drives, one flipped, found in step 16. Records dealt
evenly at random: in 12 of 12 runs with n = 4 and in 10 of 10 with n = 3 (64 records per drive and step), in 9 of 10
with n = 4 (16 records); of 118 drives of honest arrays none was accused in two windows. With 128 records per drive in
all a random sample has a direction of its own: 14 of 25 were found, and small models had honest drives accused. Records
dealt otherwise: n = 3, 4, 8 in all 12 runs with 64 records per drive and step, with 16 records in 0, 3 and 4 of 4; of
69 honest arrays of 3 to 6 drives with one to five classes each, 3 had a drive accused within 100 steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from firmware_agent.common.slices import Array
from host.training.contributions import Reason, Refusal

Floats = npt.NDArray[np.float64]

WINDOW = 16
EARLY, EARLY_WINDOWS, LATE_WINDOWS = 2, 1, 3
AGAINST, AGAINST_ALL, AGREED = -0.3, -0.1, 0.3
# Below it nobody can be told from the others.
LEAST_DEVICES = 3
COORDINATES = 4096
RISE_ERRORS = 2.0


class Sampler:
    """Takes the same coordinates of every gradient."""

    def __init__(self, sizes: Mapping[str, int], seed: int) -> None:
        """Draw them from all elements of the tensors, whose numbers of elements are given."""
        total = sum(sizes.values())
        count = min(total, COORDINATES)
        chosen: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        if total:
            chosen = np.sort(np.random.default_rng([seed, 0xD1EC]).choice(total, count, replace=False))
        edges = np.cumsum([0, *sizes.values()])
        self._places = {
            name: chosen[(chosen >= start) & (chosen < end)] - start
            for name, start, end in zip(sizes, edges, edges[1:], strict=False)
        }

    def take(self, gradient: Mapping[str, Array]) -> Floats:
        """Return the coordinates of one gradient, float64."""
        parts = [gradient[name].reshape(-1)[places] for name, places in self._places.items() if len(places)]
        return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)


class GradientSample(NamedTuple):
    """One drive's part of a step: coordinates of its gradient, records in it, and the loss that it reports."""

    sample: Floats
    records: int
    loss: float


@dataclass
class _Sum:
    """One drive's window: the sums of its samples in even and odd steps, its records, and the loss of each step."""

    halves: tuple[Floats, Floats]
    records: int = 0
    losses: list[float] = field(default_factory=list)

    @property
    def sample(self) -> Floats:
        """The sum of all its samples."""
        return self.halves[0] + self.halves[1]


class DirectionWatch:
    """Watches a run's steps; who took part in less than half of a window's is not judged by it."""

    def __init__(self, alike: bool = False) -> None:
        """Begin with nothing seen; `alike` if all drives' records are known to be (see `dealt_alike`)."""
        self._alike = alike
        self._sums: dict[str, _Sum] = {}
        self._steps = 0
        self._against: dict[str, int] = {}
        self._losses: dict[str, list[float]] = {}

    def observe(self, number: int, step: Mapping[str, GradientSample]) -> dict[str, Refusal]:
        """Take step `number` of all drives whose gradients went into it; return who is accused, which ends a window."""
        for device, seen in step.items():
            own = self._sums.setdefault(device, _Sum((np.zeros_like(seen.sample), np.zeros_like(seen.sample))))
            half = own.halves[self._steps % 2]
            half += seen.records * seen.sample
            own.records += seen.records
            own.losses.append(seen.loss)
        self._steps += 1
        if self._steps < WINDOW:
            return {}
        sums = {device: own for device, own in self._sums.items() if 2 * len(own.losses) >= WINDOW}
        self._sums, self._steps = {}, 0
        return self._judge(sums, number <= EARLY * WINDOW) if len(sums) >= LEAST_DEVICES else {}

    def _judge(self, sums: Mapping[str, _Sum], early: bool) -> dict[str, Refusal]:
        means = {device: own.sample / max(1, own.records) for device, own in sums.items()}
        even, odd = (np.sum([own.halves[half] for own in sums.values()], axis=0) for half in (0, 1))
        accused: dict[str, Refusal] = {}
        alike = self._alike and early
        for device, own in sums.items():
            others = [mean for other, mean in means.items() if other != device]
            found = cosine(means[device], np.median(others, axis=0))
            against = found < AGAINST and agreement(others) > AGREED
            against_all = cosine(np.concatenate(own.halves), np.concatenate([odd, even])) < AGAINST_ALL
            middle = len(own.losses) // 2
            rises = _rises(self._losses.get(device, []), own.losses)
            rises = rises or _rises(own.losses[:middle], own.losses[middle:])
            self._losses[device] = own.losses
            against = against and (alike or (against_all and not rises))
            self._against[device] = self._against.get(device, 0) + 1 if against else 0
            if self._against[device] >= (EARLY_WINDOWS if early else LATE_WINDOWS):
                why = "its records are like theirs" if alike else "its own loss does not rise"
                told = (
                    f"its gradients point against those of the others: over the last {WINDOW} steps their cosine with "
                    f"the others' median is {found:.2f}, while {why}; is a sign flipped in it?"
                )
                accused[device] = Refusal(Reason.DIRECTION, told)
        return accused


def _rises(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether losses have risen by more than their noise: twice the standard error of the difference of the means."""
    if not before:
        return False
    error = math.sqrt(np.var(before) / len(before) + np.var(now) / len(now))
    return float(np.mean(now) - np.mean(before)) > RISE_ERRORS * error


def agreement(vectors: Sequence[Floats]) -> float:
    """Return the mean over the vectors of the cosine with the median of the rest."""
    rest = [np.median([v for other, v in enumerate(vectors) if other != n], axis=0) for n in range(len(vectors))]
    return float(np.mean([cosine(vector, each) for vector, each in zip(vectors, rest, strict=True)]))


def cosine(one: Floats, other: Floats) -> float:
    """Return the cosine between two vectors, 0 if one has no length."""
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0

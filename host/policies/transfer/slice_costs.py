"""What a drive's slices cost, from those that crossed: seconds of each, and of each byte, with their uncertainty. Pure.

A slice of s bytes is through theta + s / b seconds after the one before it, whose end it waited for; one that left when
nothing was under way any more takes what the way and the answer take as well. A line is put through these seconds, a
robust one: what is far off counts by how far, not by its square (Huber 1964). What earlier steps
said fades over some `MEMORY` steps, so that settings with slices of different sizes are told apart.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MEMORY = 32
# So much of what is taken to be of the bytes may be a slice's own, where slices of one size alone were seen.
MOST_DOUBT = 0.9
# What slices of a size take in a step, the one in the middle, is known as well as that: they are late together.
_EXACT = 0.05
# Slices are of one size if they are within one part of an octave; more of them than so many say no more.
_SIZES_PER_OCTAVE, _MOST_SLICES = 2, 8
# So much of one slice does what was believed before count, where nothing else says how seconds are shared out.
_BELIEF_WEIGHT = 1e-3
# No link that is measured is faster: 100 GB/s.
LEAST_BYTE_SECONDS = 1e-11
# A slice that ends so soon after the one before it, by the mean of slices and of bytes, was answered together with it.
_BUNCH = 0.25
_TINY = 1e-12


class LinkFit:
    """Follows one drive.

    Attributes:
        seconds: (4,) of a slice, of a byte, and what an idle way adds to a push and to a pull.
        covariance: (4, 4) of these.
        usual_seconds: what the slices of the last step took, their mean.
    """

    def __init__(self, slice_seconds: float) -> None:
        """Begin with what is assumed of a slice until steps tell."""
        self.seconds: Floats = np.array([slice_seconds, 0.0, 0.0, 0.0])
        self.covariance: Floats = np.zeros((4, 4))
        self.usual_seconds = 0.0
        self.forget()

    def forget(self) -> None:
        """Have the next step count alone: something has changed."""
        self._information, self._sums = np.zeros((4, 4)), np.zeros(4)

    @property
    def known(self) -> bool:
        """Whether any slice was seen."""
        return bool(self.seconds[1] > 0)

    def doubt(self) -> Floats:
        """Return the seconds if a slice costs a standard deviation more, and its bytes less; most of these stay."""
        more = self.covariance[0] / math.sqrt(self.covariance[0, 0])
        less = MOST_DOUBT * self.seconds[1] / max(_TINY, -float(more[1]))
        return np.asarray(np.maximum(0.0, self.seconds + min(1.0, less) * more))

    def observe(self, table: SliceTable) -> None:
        """Take a step's slices, at least one."""
        counts = table.counts
        terms, seconds = table.groups[:, :4], np.maximum(_TINY, table.groups[:, 4])
        self.usual_seconds = usual = float(np.average(seconds, weights=counts))
        weights = np.minimum(_MOST_SLICES, counts) / _MOST_SLICES / (_EXACT * (seconds + usual)) ** 2
        per_byte = seconds.sum() / terms[:, 1].sum()
        guess = self.seconds if self.known else np.array([self.seconds[0], per_byte, 0.0, 0.0])
        prior = np.diag(_BELIEF_WEIGHT / np.array([usual, per_byte, usual, usual]) ** 2)
        self._information += (terms * weights[:, None]).T @ terms
        self._sums += (terms * weights[:, None]).T @ seconds
        self.seconds = _solve(self._information + prior, self._sums + prior @ guess)
        self.covariance = np.linalg.inv(self._information + prior).astype(np.float64)
        self._information *= 1 - 1 / MEMORY
        self._sums *= 1 - 1 / MEMORY


@dataclass(frozen=True, eq=False)
class SliceTable:
    """What the slices of one drive in one step took; drives that are alike share one.

    Attributes:
        rows: (bunches, 5) what each of the seconds of `LinkFit` counts for, and what a slice of the bunch took.
        groups: (groups, 5) of those that are alike the middle one, of each column.
        counts: (groups,) how many they are.
    """

    rows: Floats
    groups: Floats
    counts: Floats

    @classmethod
    def of(cls, slices: Floats) -> SliceTable:
        """Return the table of (slices, 4): 1 for a push and 0 for a pull, bytes, when it left, when it was read."""
        rows = _bunches(slices)
        return cls(rows, *(_middle(rows) if len(rows) else (rows, np.zeros(0))))

    def seconds_per_byte(self) -> float:
        """Return that of the slice in the middle, by bytes."""
        ratios = self.rows[:, 4] / self.rows[:, 1]
        order = np.argsort(ratios)
        passed = np.cumsum(self.rows[order, 1])
        return max(_TINY, float(ratios[order][np.searchsorted(passed, passed[-1] / 2)]))


def _bunches(slices: Floats) -> Floats:
    """Return (bunches, 5) the rows of a `SliceTable`."""
    parts = []
    for push in (0.0, 1.0):
        own = slices[slices[:, 0] == push]
        own = own[np.argsort(own[:, 2], kind="stable")]
        before = np.maximum.accumulate(np.concatenate([[-np.inf], own[:-1, 3]])) if len(own) else own[:, 3]
        idle = own[:, 2] >= before
        took = own[:, 3] - np.maximum(own[:, 2], before)
        rows = np.column_stack([np.ones(len(own)), own[:, 1], idle * push, idle * (1 - push), took])
        # Answers come in bunches: the first slice of one has waited for all of it.
        if len(own):
            usual = took.sum() * np.minimum(1 / len(own), own[:, 1] / own[:, 1].sum())
            firsts = np.flatnonzero(took >= usual * _BUNCH)
            parts += [part.mean(axis=0) for part in np.split(rows, firsts) if len(part)]
    return np.array(parts).reshape(-1, 5)


def _middle(rows: Floats) -> tuple[Floats, Floats]:
    """Return (groups, 5) the middle one of slices that are alike, of each column, and (groups,) how many they are."""
    keys = np.column_stack([np.rint(_SIZES_PER_OCTAVE * np.log2(rows[:, 1])), rows[:, 2:4]])
    _, group, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    parts = np.split(rows[np.argsort(group.ravel(), kind="stable")], np.cumsum(counts)[:-1])
    return np.array([np.median(part, axis=0) for part in parts]), counts.astype(np.float64)


def _solve(information: Floats, sums: Floats) -> Floats:
    """Return the seconds that fit best, none of them negative, and a byte not free.

    Of all ways to leave some of them at 0, for there are few.
    """
    best, least = np.zeros(len(sums)), np.inf
    for kept in itertools.product((True, False), repeat=len(sums)):
        free, found = np.flatnonzero(kept), np.zeros(len(sums))
        found[free] = np.linalg.solve(information[np.ix_(free, free)], sums[free])
        off = float(found @ information @ found - 2 * sums @ found)
        if off < least and (found >= 0).all():
            best, least = found, off
            if all(kept):  # nothing fits better
                break
    best[1] = max(best[1], LEAST_BYTE_SECONDS)
    return best

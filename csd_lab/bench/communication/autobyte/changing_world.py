"""What the steps of a drawn case take, and what a host sees of them. Simulated seconds.

A step takes what steps of its state take once they are alike (`csd_lab.bench.communication.bytescheduler.event_world`),
times the case's noise; what a change leaves over from the step before is not counted. Each state is played once with
each setting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_lab.bench.communication.autobyte.changing_cases import (
    HELD_SECONDS,
    HELD_SHARE,
    ChangingCase,
)
from csd_lab.bench.communication.bytescheduler.brute_force import find_best, least_seconds
from csd_lab.bench.communication.bytescheduler.event_world import PlayedSteps, Setting, play_steps

Floats = npt.NDArray[np.float64]
_NOISE_STREAM = 1
# Steps that are so much longer, or less, are as good.
AS_GOOD = 1.001


@dataclass(frozen=True)
class SeenSlices:
    """Slices of one drive in one direction, as the host sees them, in the order of their ends.

    Attributes:
        drive: its number.
        push: whether the drive sent them.
        size_bytes: (slices,) of each.
        begin_seconds: (slices,) when each left its queue.
        end_seconds: (slices,) when each was read; of a pull, when the host was told so.
    """

    drive: int
    push: bool
    size_bytes: npt.NDArray[np.int64]
    begin_seconds: Floats
    end_seconds: Floats


class ChangingWorld:
    """A case, of which everything may be asked; what was played is kept."""

    def __init__(self, case: ChangingCase) -> None:
        """Play nothing yet."""
        self.case = case
        self._seconds: dict[tuple[int, Setting], float] = {}
        self._slices: dict[tuple[int, Setting], list[SeenSlices]] = {}
        self._searched = set[int]()
        self._steps_of = np.bincount(case.at, weights=case.step_noise, minlength=len(case.states))

    def seconds(self, state: int, setting: Setting) -> float:
        """Return what a step takes in a state, without noise."""
        key = state, setting
        if key not in self._seconds:
            self._seconds[key] = self._play(state, setting).seconds
        return self._seconds[key]

    def slices(self, state: int, setting: Setting) -> list[SeenSlices]:
        """Return the slices of such a step, each drive's pushes and pulls, without noise.

        A drive's clock is put on the host's by its report's way: a push seems to begin later by the latency.
        """
        key = state, setting
        if key not in self._slices:
            played = self._play(state, setting)
            self._seconds[key] = played.seconds
            late = self.case.states[state].latency_seconds
            groups = list[SeenSlices]()
            for drive in range(len(self.case.states[state].slowdowns)):
                for push in (True, False):
                    own = [each for each in played.carried if each.drive == drive and each.push == push]
                    begins = np.array([each.begin_seconds + late * push for each in own])
                    ends = np.array([each.end_seconds for each in own])
                    sizes = np.array([each.size_bytes for each in own], np.int64)
                    groups.append(SeenSlices(drive, push, sizes, begins, ends))
            self._slices[key] = groups
        return self._slices[key]

    def best(self, state: int) -> tuple[Setting, float]:
        """Return a state's best setting of those that brute force tries, and all that were ever played."""
        if state not in self._searched:
            self._searched.add(state)
            find_best(self.case.states[state], lambda setting: self.seconds(state, setting))
        tried = {setting: seconds for (number, setting), seconds in self._seconds.items() if number == state}
        best = min(tried, key=tried.__getitem__)
        return best, tried[best]

    def best_beforehand(self, default: Setting) -> Setting:
        """Return the best setting of the first state; of those that are as good, the one that is nearest to `default`.

        A search stays where it is if nothing promises more.
        """
        least = self.best(0)[1]
        self.seconds(0, default)
        good = [each for (state, each), seconds in self._seconds.items() if not state and seconds <= least * AS_GOOD]
        places = {each: np.log2([each.slice_bytes, each.credit_bytes]) for each in (default, *good)}
        return min(good, key=lambda each: float(np.abs(places[each] - places[default]).sum()))

    def total_seconds(self, setting: Setting) -> float:
        """Return what the whole case takes with one setting."""
        return float(sum(weight * self.seconds(state, setting) for state, weight in enumerate(self._steps_of)))

    def oracle_seconds(self) -> float:
        """Return what it takes with each state's best setting, from its first step on."""
        return float(sum(weight * self.best(state)[1] for state, weight in enumerate(self._steps_of)))

    def best_in_hindsight(self) -> tuple[Setting, float]:
        """Return the setting, of all that were played in any state, with which the whole case takes least."""
        bounds = dict[Setting, float]()
        for setting in {setting for _, setting in self._seconds}:
            bounds[setting] = sum(
                weight * self._seconds.get((state, setting), least_seconds(self.case.states[state], setting))
                for state, weight in enumerate(self._steps_of)
            )
        # What was not played in a state may be as good there as its best setting.
        best, least = Setting(1 << 40, 1 << 40), np.inf
        for setting in sorted(bounds, key=bounds.__getitem__):
            if bounds[setting] < least and (seconds := self._total_below(setting, least)) < least:
                best, least = setting, seconds
        return best, float(least)

    def _total_below(self, setting: Setting, limit: float) -> float:
        """Return what the whole case takes with a setting, or infinity if that is more than the limit."""
        total, order = 0.0, np.argsort(-self._steps_of)
        rest = [self._least(int(state), setting) * self._steps_of[state] for state in order]
        for place, state in enumerate(order):
            if total + sum(rest[place:]) >= limit:
                return np.inf
            total += self._steps_of[state] * self.seconds(int(state), setting)
        return float(total)

    def _least(self, state: int, setting: Setting) -> float:
        """Return what a step takes in a state, or what it takes at least there."""
        known = self._seconds.get((state, setting))
        return known or max(self.best(state)[1], least_seconds(self.case.states[state], setting))

    def _play(self, state: int, setting: Setting) -> PlayedSteps:
        return play_steps(self.case.states[state], setting)

    def generator(self) -> np.random.Generator:
        """Return what is drawn from while a tuner is played."""
        return np.random.default_rng([self.case.seed, _NOISE_STREAM])


def blur(slices: SeenSlices, late_seconds: float, factor: float, generator: np.random.Generator) -> SeenSlices:
    """Return slices as they are seen in one step: all longer by the step's factor, each end late, some held up."""
    count = len(slices.size_bytes)
    late = generator.exponential(late_seconds, count)
    held = generator.random(count) < HELD_SHARE
    late[held] += generator.uniform(*HELD_SECONDS, int(held.sum()))
    # They are read in their order.
    ends = np.maximum.accumulate(slices.end_seconds * factor + late) if count else slices.end_seconds
    return SeenSlices(slices.drive, slices.push, slices.size_bytes, slices.begin_seconds * factor, ends)

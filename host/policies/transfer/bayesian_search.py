"""Static search: Bayesian optimisation of slice size and credit over the first steps; then the best one stays.

After ByteScheduler (Peng et al., SOSP 2019) and its released tuner: points of some steps each, the first measurement
thrown away, each announced some steps ahead, and expected improvement of a Gaussian process says which is next. What is
ours:

* both the slice size and the credit are searched, on a logarithmic scale, and both are applied: in the released code
  the tuned slice size is written where nobody reads it;
* the first points lie around the setting that the run begins with, where the released tuner draws 10 of its 15 at
  random;
* there are as many points as pay: few where the wire hardly matters, up to 30 where it dominates. The search ends when
  no setting is expected to bring `enough`;
* a point is the median of its steps, for other traffic comes in bursts, and the choice is the measured setting that the
  process believes to be best: the least of 30 noisy measurements is not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from host.config.plugins.kinds import TRANSFER_TUNER
from host.policies.transfer.gaussian_process import Floats, infer
from host.policies.transfer.setting_grid import candidates, scaled
from host.policies.transfer.transfer_tuner import LEAST_AHEAD_STEPS, Change, StepSeen, check_seen, check_tunable

# Where the first points lie: octaves of slice size and of credit, from the setting that the run begins with.
FIRST_OCTAVES = ((0, 0), (-2, -2), (2, 2), (0, 2), (-2, 0), (0, -2), (4, 4), (-2, 2))
# What takes so much longer than the best point (logarithm) is as bad as anything worse, so that the process does not
# bend to it.
WORST_LOG = 0.4


@dataclass(frozen=True)
class SearchRules:
    """How long a search takes: at most points x (steps + settle + ahead).

    Attributes:
        points: settings that are measured at most.
        around: of them first ones around the setting that the run begins with, which is one of them.
        steps: that a point is measured for.
        ahead: steps between the announcement of a point and its first step.
        settle: first steps of a point that are not counted: what was sent before may still be under way.
        enough: the search ends when the best setting is expected to bring less (logarithm of step seconds).
    """

    points: int = 30
    around: int = 8
    steps: int = 20
    ahead: int = 2
    settle: int = 1
    enough: float = 0.0005

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigurationError: there is nothing to search or to measure, or the host could not announce in time.
        """
        for message, broken in {
            f"{self.around} of {self.points} points of a search are to lie around the first; give 1 to "
            f"{len(FIRST_OCTAVES)}, and no more than all of them": (
                not 1 <= self.around <= min(self.points, len(FIRST_OCTAVES))
            ),
            "a point of a search is measured for at least one step, after 0 or more": self.steps < 1 or self.settle < 0,
            f"points of a search are announced {self.ahead} steps ahead; give {LEAST_AHEAD_STEPS} at least": (
                self.ahead < LEAST_AHEAD_STEPS
            ),
        }.items():
            if broken:
                raise ConfigurationError(message)


@dataclass
class _Point:
    """A setting that is measured from step `first` on."""

    sending: TransferSettings
    first: int
    seconds: list[float] = field(default_factory=list)


@TRANSFER_TUNER.register("search", "Slice and credit are found in the first steps, and kept.")
class StaticSearch:
    """A `TransferTuner` that searches once. The same observations lead to the same choice."""

    learns = True

    def __init__(self, first: TransferSettings, rules: SearchRules | None = None) -> None:
        """Begin with `first`.

        Raises:
            ConfigurationError: it has no slices or no credit.
        """
        check_tunable(first)
        self._first, self._rules = first, rules or SearchRules()
        self._told: list[tuple[TransferSettings, float]] = []
        self._warm = False
        self._point = _Point(first, 1)
        self._before = first
        self._finished = False

    @property
    def finished(self) -> bool:
        """Whether the search is over, and its choice announced."""
        return self._finished

    @property
    def measured(self) -> tuple[tuple[TransferSettings, float], ...]:
        """Each point so far with the median of its step seconds; a setting may be measured more than once."""
        return tuple(self._told)

    def sending(self, step: int) -> TransferSettings:
        """Return the setting of a step: the point that is measured, or was announced for it."""
        return self._point.sending if step >= self._point.first else self._before

    def observe(self, seen: StepSeen) -> Change | None:
        """Count the step for the point that it was sent with; announce the next one when there are enough."""
        check_seen(seen)
        point = self._point
        if self.finished or seen.step < point.first + self._rules.settle or seen.sending != point.sending:
            return None
        point.seconds.append(seen.step_seconds)
        if len(point.seconds) < self._rules.steps:
            return None
        if not self._warm:
            self._warm = True
            point.seconds.clear()
            return None
        self._told.append((point.sending, statistics.median(point.seconds)))
        return self._go_on(seen.step)

    def state(self) -> dict[str, Any]:
        """Return what was measured, and of the point that is under way its first step and its seconds so far."""
        return {
            "points": [[point.slice_bytes, point.credit_bytes, seconds] for point, seconds in self._told],
            "finished": self.finished,
            "warm": self._warm,
            "first": self._point.first,
            "seconds": list(self._point.seconds),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue as the search would have whose `state` this is.

        Raises:
            CheckpointError: it is not the state of a search.
        """
        try:
            told = [
                (TransferSettings("priority", size, credit), float(seconds))
                for size, credit, seconds in state["points"]
            ]
            finished, warm = bool(state["finished"]), bool(state.get("warm", told))
            # The release before kept nothing of the point that is under way.
            first, under_way = int(state.get("first", 1)), [float(seconds) for seconds in state.get("seconds", ())]
        except (KeyError, TypeError, ValueError, OverflowError, ConfigurationError) as error:
            raise CheckpointError(f"the state of the communication search cannot be read: {error}") from error
        if (
            not all(0 < seconds < math.inf for seconds in (*under_way, *(seconds for _, seconds in told)))
            or len(told) > self._rules.points
            or len(under_way) >= self._rules.steps
            or first < 1
            or (told and not warm)
            or (finished and not told)
        ):
            raise CheckpointError("the state of the communication search has points that no search can have had")
        self._told, self._warm, self._finished = told, warm, finished
        chosen = self._first if not told else self._best() if finished else self._next_point() or self._best()
        self._point, self._before = _Point(chosen, first, under_way), told[-1][0] if told else chosen

    def _go_on(self, step: int) -> Change:
        """Announce the next point, or the best one for good."""
        found = self._next_point() if len(self._told) < self._rules.points else None
        chosen, first = found or self._best(), step + self._rules.ahead
        self._before, self._point, self._finished = self._point.sending, _Point(chosen, first), found is None
        if found is not None:
            return Change(first, chosen, f"search, point {len(self._told) + 1} of {self._rules.points} at most")
        gain = math.log(self._told[0][1] / dict(self._told)[chosen])
        return Change(first, chosen, f"search, the best of {len(self._told)} points", gain)

    def _best(self) -> TransferSettings:
        """Return the measured setting that is believed to be best."""
        points, logs = self._measurements()
        return self._told[int(infer(points, logs, points).means.argmin())][0]

    def _next_point(self) -> TransferSettings | None:
        """Return what is measured next, of what was measured alone: a resumed search goes on as it would have.

        None if nothing is expected to bring enough.
        """
        if len(self._told) < self._rules.around:
            return scaled(self._first, *FIRST_OCTAVES[len(self._told)])
        points, logs = self._measurements()
        settings = (*candidates(per_octave=2), *(sending for sending, _ in self._told))
        believed = infer(points, logs, np.array([_place(each) for each in settings]))
        gains = believed.expect_improvement(float(believed.means[-len(self._told) :].min()))
        return settings[int(gains.argmax())] if gains.max() >= self._rules.enough else None

    def _measurements(self) -> tuple[Floats, Floats]:
        """Return (points, 2) places and (points,) logs of step seconds, of bad ones no more than `WORST_LOG`."""
        logs = np.log([seconds for _, seconds in self._told])
        return np.array([_place(each) for each, _ in self._told]), np.minimum(logs, logs.min() + WORST_LOG)


def _place(sending: TransferSettings) -> tuple[float, float]:
    """Return a setting on the logarithmic axes, in octaves."""
    return math.log2(sending.slice_bytes or 1), math.log2(sending.credit_bytes or 1)

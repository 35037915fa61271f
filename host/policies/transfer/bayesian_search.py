"""Static search: Bayesian optimisation of slice size and credit over the first steps; then the best one stays.

After ByteScheduler (Peng et al., SOSP 2019) and its released tuner: 15 points of which 10 are drawn at random, the
first measurement thrown away, each point the mean of some steps, each announced some steps ahead. Two things are ours.
Both the slice size and the credit are searched, on a logarithmic scale, and both are applied: in the released code the
tuned slice size is written where nobody reads it. And the setting that the run begins with is the first point, measured
again after the measurement that is thrown away, so that the choice is no worse than it but for noise. The surrogate is
optuna's Gaussian process (Matern 5/2, log expected improvement), where ByteScheduler has expected improvement with xi =
0.1.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.frames.frame_fields import MAX_SLICE_BYTES
from firmware_agent.common.send_queue import TransferSettings
from host.config.plugins.kinds import TRANSFER_TUNER
from host.policies.transfer.setting_grid import LEAST_CREDIT_BYTES, LEAST_SLICE_BYTES, MOST_CREDIT_BYTES, round_bytes
from host.policies.transfer.transfer_tuner import LEAST_AHEAD_STEPS, Change, StepSeen, check_seen, check_tunable

if TYPE_CHECKING:  # it takes a while to import, and only a search needs it
    from optuna import Study
    from optuna.distributions import BaseDistribution

_SLICE, _CREDIT = "log2_slice_bytes", "log2_credit_bytes"
_AXES = {_SLICE: (LEAST_SLICE_BYTES, MAX_SLICE_BYTES), _CREDIT: (LEAST_CREDIT_BYTES, MOST_CREDIT_BYTES)}


@dataclass(frozen=True)
class SearchRules:
    """How long a search takes: about points x (steps + ahead).

    Attributes:
        points: settings that are measured.
        random: of them drawn at random; the first is the one that the run begins with.
        steps: that a point is measured for.
        ahead: steps between the announcement of a point and its first step.
        settle: first steps of a point that are not counted: what was sent before may still be under way.
    """

    points: int = 15
    random: int = 10
    steps: int = 20
    ahead: int = 10
    settle: int = 1

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigurationError: there is nothing to search or to measure, or the host could not announce in time.
        """
        if not 1 <= self.random <= self.points:
            raise ConfigurationError(
                f"{self.random} of {self.points} points of a search are to be drawn at random; give 1 to all of them"
            )
        if self.steps < 1 or self.settle < 0:
            raise ConfigurationError("a point of a search is measured for at least one step, after 0 or more")
        if self.ahead < LEAST_AHEAD_STEPS:
            raise ConfigurationError(
                f"points of a search are announced {self.ahead} steps ahead; give {LEAST_AHEAD_STEPS} at least"
            )


@dataclass
class _Point:
    """A setting that is measured from step `first` on."""

    sending: TransferSettings
    first: int
    total: float = 0.0
    count: int = 0


@TRANSFER_TUNER.register("search", "Slice and credit are found in the first steps, and kept.")
class StaticSearch:
    """A `TransferTuner` that searches once. The same observations lead to the same choice."""

    learns = True

    def __init__(self, first: TransferSettings, seed: int, rules: SearchRules | None = None) -> None:
        """Begin with `first`.

        Raises:
            ConfigurationError: it has no slices, no credit, or slices that the wire does not take.
        """
        check_tunable(first)
        self._first, self._seed, self._rules = first, seed, rules or SearchRules()
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
        """Each point so far with its mean step seconds."""
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
        point.total += seen.step_seconds
        point.count += 1
        if point.count < self._rules.steps:
            return None
        if not self._warm:
            self._warm, point.total, point.count = True, 0.0, 0
            return None
        self._told.append((point.sending, point.total / point.count))
        return self._go_on(seen.step)

    def state(self) -> dict[str, Any]:
        """Return what was measured; the search goes on with the point that is under way, measured anew."""
        return {
            "points": [[point.slice_bytes, point.credit_bytes, seconds] for point, seconds in self._told],
            "finished": self.finished,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, at whatever step comes next.

        Raises:
            CheckpointError: it is not the state of a search.
        """
        try:
            told = [
                (TransferSettings("priority", size, credit), float(seconds))
                for size, credit, seconds in state["points"]
            ]
            finished = bool(state["finished"])
        except (KeyError, TypeError, ValueError, ConfigurationError) as error:
            raise CheckpointError(f"the state of the communication search cannot be read: {error}") from error
        if not all(0 < seconds < math.inf for _, seconds in told) or (finished and not told):
            raise CheckpointError("the state of the communication search has a point that no step can have had")
        self._told, self._warm, self._finished = told, bool(told), finished
        chosen = self._best() if finished else self._next_point() if told else self._first
        self._point, self._before = _Point(chosen, 1), chosen

    def _go_on(self, step: int) -> Change:
        """Announce the next point, or the best one for good."""
        done = len(self._told) >= self._rules.points
        chosen = self._best() if done else self._next_point()
        first = step + self._rules.ahead
        self._before, self._point, self._finished = self._point.sending, _Point(chosen, first), done
        if not done:
            return Change(first, chosen, f"search, point {len(self._told) + 1} of {self._rules.points}")
        gain = math.log(self._told[0][1] / min(seconds for _, seconds in self._told))
        return Change(first, chosen, f"search, the best of {len(self._told)} points", gain)

    def _best(self) -> TransferSettings:
        return min(self._told, key=lambda point: point[1])[0]

    def _next_point(self) -> TransferSettings:
        """Ask the surrogate, which is made anew of all that was measured: a resumed search goes on as it would have."""
        study, space = self._ask_study()
        trial = study.ask(space)
        slice_bytes = round_bytes(2.0 ** trial.params[_SLICE], MAX_SLICE_BYTES)
        credit_bytes = round_bytes(2.0 ** trial.params[_CREDIT], MOST_CREDIT_BYTES)
        return TransferSettings("priority", slice_bytes, max(slice_bytes, credit_bytes))

    def _ask_study(self) -> tuple[Study, dict[str, BaseDistribution]]:
        import optuna
        from optuna.distributions import FloatDistribution
        from optuna.samplers import GPSampler

        # optuna says that it would be faster with a package that makes no difference here.
        logging.getLogger("optuna").setLevel(logging.ERROR)
        space: dict[str, BaseDistribution] = {
            name: FloatDistribution(math.log2(least), math.log2(most)) for name, (least, most) in _AXES.items()
        }
        sampler = GPSampler(seed=self._seed + len(self._told), n_startup_trials=self._rules.random)
        study = optuna.create_study(sampler=sampler)
        for sending, seconds in self._told:
            sizes = (sending.slice_bytes or MAX_SLICE_BYTES, sending.credit_bytes or MOST_CREDIT_BYTES)
            values = {name: _clip(size, *_AXES[name]) for name, size in zip(_AXES, sizes, strict=True)}
            study.add_trial(optuna.trial.create_trial(params=values, distributions=space, value=math.log(seconds)))
        return study, space


def _clip(size_bytes: int, least: int, most: int) -> float:
    """Return log2 of a size, within the axis: a run may begin outside of what is searched."""
    return math.log2(min(max(size_bytes, least), most))

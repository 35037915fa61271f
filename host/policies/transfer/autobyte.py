"""AutoByte: slice size and credit kept right while link and drives change.

After AutoByte (see docs/communication-tuning.md), of which the abstract's idea could be read, no more: run-time
statistics go into a meta-network that predicts the speed-up of a setting. The rules around it are ours.

* A predictor says what each candidate takes under the conditions as they are believed. By how much it is off is learnt
  from the settings that were measured under these conditions: a Gaussian process over slice and credit.
* A setting is tried if its expected gain over `HORIZON_STEPS` is more than what the trial is expected to lose, and than
  `DISTRUST` times what trials have lost so far against the setting that the run began with.
* Else the best one of those that were measured is sent: what turned out worse is given up after its trial, or after one
  step that is longer by more than `TOLERANCE`. It is the one that the run began with if none is known to be better;
  under new conditions that one is measured first, unless another one is predicted to be much better.
* Conditions that come back bring back what was measured under them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.overlap.layer_work import exchange_bytes
from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from host.config.plugins.kinds import TRANSFER_TUNER
from host.policies.transfer.gaussian_process import Posterior, correct
from host.policies.transfer.link_conditions import Conditions, Level, Watch
from host.policies.transfer.setting_grid import candidates
from host.policies.transfer.speedup_predictor import Predictor, find_predictor
from host.policies.transfer.transfer_tuner import LEAST_AHEAD_STEPS, Change, StepSeen, check_seen, check_tunable

# A setting is known by so many of its last steps; so many in a row are late together, and say no more than one.
RECENT_STEPS, ALIKE_STEPS = 64, 4
# Steps that a trial takes, and the log of step seconds by which a setting is given up after one of them. Before the
# first trial so many pass: up to three of them are long, while drives build the model and take their memory.
TRIAL_STEPS, TOLERANCE, BEGIN_STEPS = 3, 0.03, 7
# Least expected gain for which one that was measured is taken again, as a log of step seconds.
MARGIN = 0.003
# Slices that are tried are no smaller than this part of the smallest ones that were measured.
SMALLER = 2
# What takes longer than the best one by so much, as a log, says nothing about settings that are nearly as good.
NEAR = 0.25
# What a trial brings is counted over so many steps at least, and has to be more than this part of a step.
HORIZON_STEPS, TRIAL_COST = 50, 0.25
# And so many times what has been lost so far, in steps, against the setting that the run began with.
DISTRUST = 10.0
# Standard deviation of a predictor's error until some are known, and what it is taken for at least and at most.
ERROR, ERROR_COUNT, LEAST_ERROR, MOST_ERROR = 0.02, 4, 0.005, 0.1
# How well its errors under other conditions tell those under these, one standard deviation; so many are kept.
OTHER_NOISE, MOST_ERRORS = 0.03, 60
# Conditions that differ by less than that in each log are the same; so many are kept.
SAME_CONDITIONS, MOST_STATES = 0.2, 16

Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class _State:
    """What was measured while conditions stayed.

    Attributes:
        measured: logs of step seconds of each setting.
        logs: of the conditions.
        conditions: these.
        steps: that they have lasted.
    """

    measured: dict[TransferSettings, deque[float]] = field(default_factory=dict)
    logs: Floats = field(default_factory=lambda: np.zeros(0))
    conditions: Conditions | None = None
    steps: int = 0

    def note(self, sending: TransferSettings, log: float) -> None:
        """Take a step."""
        self.steps += 1
        self.measured.setdefault(sending, deque(maxlen=RECENT_STEPS)).append(log)

    def levels(self) -> dict[TransferSettings, float]:
        """Return the median of each setting's logs: a step that a busy machine holds up says nothing of a setting."""
        return {sending: median(logs) for sending, logs in self.measured.items()}


@TRANSFER_TUNER.register("autobyte", "Slice and credit are chosen again and again.")
class AutoByte:
    """A `TransferTuner` that retunes during training. The same observations lead to the same changes."""

    learns = True

    def __init__(
        self,
        first: TransferSettings,
        predictor: Predictor | str = "model",
        settings: Sequence[TransferSettings] | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Begin with `first`.

        Args:
            first: until conditions are known.
            predictor: what compares settings, or its name (see `find_predictor`).
            settings: what is chosen from; None for `candidates()`.
            block_bytes: the host steps ranges of so many bytes.

        Raises:
            ConfigurationError: `first` or one of `settings` has no slices, no credit, or slices too large for the wire.
        """
        self._settings = tuple(dict.fromkeys((first, *(candidates() if settings is None else settings))))
        for each in self._settings:
            check_tunable(each)
        self._predictor = find_predictor(predictor) if isinstance(predictor, str) else predictor
        self._watch, self._steps = Watch(block_bytes), Level()
        # The setting of a job without tuning, and how many steps' time was lost against it.
        self._first, self._lost = first, 0.0
        # The setting that was announced last, the first step that has it, and the setting of the steps before.
        self._present, self._since, self._before = first, 1, first
        self._state, self._states = _State(), deque[_State](maxlen=MOST_STATES)
        # (log2 of slice, of credit, error) of the predictor under other conditions, each less the mean of those there.
        self._errors = deque[tuple[float, float, float]](maxlen=MOST_ERRORS)

    def sending(self, step: int) -> TransferSettings:
        """Return the setting of a step: the last one that was announced for it or before."""
        return self._present if step >= self._since else self._before

    def observe(self, seen: StepSeen) -> Change | None:
        """Learn from a step; try another setting, or give one up, or stay (see `TransferTuner.observe`)."""
        check_seen(seen)
        if self._watch.observe(seen):
            self._leave_state()
        if seen.sending != self._present:
            return None  # it was announced before the last change
        self._state.note(self._present, math.log(seen.step_seconds))
        self._steps.observe(seen.step_seconds)
        return self._decide(seen.step)

    def state(self) -> dict[str, Any]:
        """Return the setting, and what was lost; link and drives are measured again after a resume."""
        present = self._present
        return {"slice_bytes": present.slice_bytes, "credit_bytes": present.credit_bytes, "lost": self._lost}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            CheckpointError: it is not the state of AutoByte.
        """
        try:
            sending = TransferSettings("priority", state["slice_bytes"], state["credit_bytes"])
            check_tunable(sending)
            lost = float(state.get("lost", 0.0))
        except (KeyError, TypeError, ValueError, ConfigurationError) as error:
            raise CheckpointError(f"the state of AutoByte cannot be read: {error}") from error
        self._present, self._since, self._before = sending, 1, sending
        self._lost = lost if math.isfinite(lost) else 0.0

    def _leave_state(self) -> None:
        """Begin with other conditions."""
        state = self._state
        if state.conditions is not None:
            self._states.append(state)
            near = _near(state.levels())
            settings = tuple(near)
            errors = np.array(list(near.values())) - self._predict(state.conditions, settings)
            self._errors.extend(np.column_stack([_places(settings), errors - errors.mean()]).tolist())
        self._state = _State()
        self._steps.forget()

    def _recall(self, conditions: Conditions) -> None:
        """Take what was measured under conditions like these, if they are new."""
        logs, own = self._watch.logs(), self._state
        if own.conditions is None:
            for each in [each for each in self._states if len(each.logs) == len(logs)]:
                if np.abs(each.logs - logs).max() < SAME_CONDITIONS:
                    self._states.remove(each)
                    for sending, steps in own.measured.items():
                        each.measured.setdefault(sending, deque(maxlen=RECENT_STEPS)).extend(steps)
                    self._state = each
                    return
        own.logs, own.conditions = logs, conditions

    def _decide(self, step: int) -> Change | None:
        """Try a setting, or give up the one on trial, or stay."""
        if (conditions := self._watch.conditions()) is None:
            return None
        if self._state.conditions is not conditions:
            self._recall(conditions)
        state, present, levels = self._state, self._present, self._state.levels()
        best = min(levels, key=levels.__getitem__)
        worse = levels[present] - levels[best]
        # What is lost by more than a predictor errs, conditions did that are about to change.
        self._lost += min(MOST_ERROR, levels[present] - levels.get(self._first, levels[best]))
        if self._watch.steps < BEGIN_STEPS or (len(levels) > 1 and step - self._since + 1 < TRIAL_STEPS):
            if worse > max(TOLERANCE, 3 * self._steps.noise):
                # Back to what is known first: should conditions have changed meanwhile, that shows it.
                return self._announce(step, best, f"falls back: a step is {math.expm1(worse):.1%} longer", worse)
            return None
        settings, near = self._allowed(conditions, levels), _near(levels)
        believed = self._believe(state, settings, near)
        expected = dict(zip(settings, believed.means.tolist(), strict=True))
        # What the job began with is as good as what is not known to be better: under these conditions, measured.
        first, least = settings.index(self._first), min(expected[each] for each in near)
        doubt = max(MARGIN, float(believed.deviations[first])) if self._first in levels else MOST_ERROR
        best = min(
            (each for each in (*near, self._first) if each in near or each not in levels),
            key=lambda each: expected[each] - doubt * (each == self._first),
        )
        # The noisier steps are, the less a trial moves what is believed (knowledge gradient; Frazier et al. 2008).
        moves = believed.deviations**2 / np.hypot(believed.deviations, self._steps.noise)
        gains = Posterior(believed.means, moves).expect_improvement(least)
        losses = gains + believed.means - least
        # Conditions are expected to last as long again as they have lasted.
        worth = max(HORIZON_STEPS, state.steps) * gains - TRIAL_STEPS * losses - DISTRUST * max(0.0, self._lost)
        worth[[settings.index(each) for each in levels if each == present or each not in near]] = -np.inf
        if best not in levels and expected[best] - doubt < min(believed.means):
            worth[first] = np.inf
        chosen = settings[int(worth.argmax())]
        if worth.max() > TRIAL_COST:
            gain = least - expected[chosen]
            link = f"{conditions.link.bytes_per_second:.3g} B/s, {conditions.link.slice_seconds * 1e3:.3g} ms a slice"
            why = f"{math.expm1(gain):.1%} faster" if gain > 0 else f"{math.expm1(-gain):.1%} slower, but not for sure,"
            if chosen == self._first:
                why = "the first setting is measured"
            return self._announce(step, chosen, f"{self._predictor.name}: {why} at {link}", gain)
        worse = expected[present] - expected[best] if present in near else NEAR
        if best != present and (best == self._first or worse > max(MARGIN, self._steps.noise / 2)):
            why = f"steps are {math.expm1(worse):.1%} longer"
            if best == self._first:
                why = f"no other setting is better than the first by more than {doubt:.1%}"
            return self._announce(step, best, f"falls back: {why}", worse)
        return None

    def _allowed(self, conditions: Conditions, measured: Collection[TransferSettings]) -> tuple[TransferSettings, ...]:
        """Return what may be tried, and what was measured.

        What slices cost that are much smaller than all those that crossed is not known well, and may be much.
        """
        least = min(each.slice_bytes or 0 for each in measured) / SMALLER
        most = 2 * exchange_bytes(conditions.costs)
        allowed = [
            each for each in self._settings if least <= (each.slice_bytes or 0) and (each.credit_bytes or 0) < most
        ]
        return tuple(dict.fromkeys((*allowed, self._first, *measured)))

    def _predict(self, conditions: Conditions, settings: Sequence[TransferSettings]) -> Floats:
        """Return (settings,) predicted logs; the mean of both, where it is in doubt what slices cost."""
        each = [conditions] if conditions.doubt is None else [conditions, conditions.doubt]
        return np.asarray(np.mean([self._predictor.log_seconds(one, settings) for one in each], axis=0))

    def _believe(
        self, state: _State, settings: Sequence[TransferSettings], levels: Mapping[TransferSettings, float]
    ) -> Posterior:
        """Return what is believed of logs of step seconds, less a constant, from predictions and measured levels."""
        assert state.conditions is not None
        logs, places = self._predict(state.conditions, settings), _places(settings)
        at, others = [settings.index(each) for each in levels], np.array(self._errors).reshape(-1, 3)
        errors = np.array(list(levels.values())) - logs[at]
        known = np.concatenate([errors - errors.mean(), others[:, 2]])
        spread = math.sqrt((ERROR**2 * ERROR_COUNT + sum(known**2)) / (ERROR_COUNT + len(known)))
        shared = np.repeat([1.0, 0.0], [len(errors), len(others)])
        alike = np.array([max(1.0, len(state.measured[each]) / ALIKE_STEPS) for each in levels])
        noises = np.concatenate([self._steps.noise / np.sqrt(alike), np.full(len(others), OTHER_NOISE)])
        points = np.concatenate([places[at], others[:, :2]])
        off = correct(points, known, noises, shared, places, min(MOST_ERROR, max(LEAST_ERROR, spread)))
        return Posterior(logs + off.means, off.deviations)

    def _announce(self, step: int, sending: TransferSettings, reason: str, gain: float) -> Change:
        self._before = self.sending(step)
        self._present, self._since = sending, step + LEAST_AHEAD_STEPS
        self._steps.forget()
        return Change(self._since, sending, reason, gain)


def _places(settings: Sequence[TransferSettings]) -> Floats:
    """Return (settings, 2) base 2 logarithms of slice and credit."""
    return np.log2(np.array([(each.slice_bytes, each.credit_bytes) for each in settings], np.float64))


def _near(levels: Mapping[TransferSettings, float]) -> dict[TransferSettings, float]:
    """Return those that are nearly as good as the best one."""
    least = min(levels.values())
    return {sending: level for sending, level in levels.items() if level - least < NEAR}

"""AutoByte: slice size and credit kept right while link and drives change.

After AutoByte (see docs/communication-tuning.md), of which the abstract's idea could be read, no more: run-time
statistics go into a meta-network that predicts the speed-up of a setting. The rules around it are ours.

* A decision is due in every step, but while a change is announced or on trial; there only when conditions jumped.
* All candidates are scored in one batch. The best one is adopted if it promises more than `MARGIN`, from an announced
  step on. The present setting gets this benefit of the doubt because a predictor's error is about as large.
* The first `VERIFY_STEPS` steps with it are compared with the last ones before it, under the same conditions. If they
  are longer by more than `TOLERANCE`, the run falls back, and the setting is not tried again until conditions jump or
  move by `FORGIVE`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from csd_emu.perfmodel.overlap.stepped_ranges import BLOCK_BYTES
from firmware_agent.common.errors import CheckpointError, ConfigurationError
from firmware_agent.common.send_queue import TransferSettings
from host.config.plugins.kinds import TRANSFER_TUNER
from host.policies.transfer.link_conditions import Watch
from host.policies.transfer.setting_grid import candidates
from host.policies.transfer.speedup_predictor import Predictor, SimulatedSettings
from host.policies.transfer.transfer_tuner import LEAST_AHEAD_STEPS, Change, StepSeen, check_seen, check_tunable

# A setting is known by so many of its last steps.
RECENT_STEPS = 8
# Least predicted gain for which a setting is changed, as log of step seconds over step seconds.
MARGIN = 0.0005
# Steps that a new setting is judged by, and the log of step seconds by which it may be worse than the one before.
VERIFY_STEPS, TOLERANCE = 2, 0.08
# Log by which conditions have moved when a setting that failed may be tried again.
FORGIVE = 0.35


@dataclass
class _Trial:
    """A setting that has to show that it is no worse than the one before.

    Attributes:
        sending: it.
        before: what is fallen back to.
        reference: mean log of step seconds with the one before, under the same conditions.
        logs: those of the setting so far.
    """

    sending: TransferSettings
    before: TransferSettings
    reference: float
    logs: list[float] = field(default_factory=list)


@TRANSFER_TUNER.register("autobyte", "Slice and credit are chosen again and again.")
class AutoByte:
    """A `TransferTuner` that retunes during training. The same observations lead to the same changes."""

    learns = True

    def __init__(
        self,
        first: TransferSettings,
        predictor: Predictor | None = None,
        settings: Sequence[TransferSettings] | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Begin with `first`.

        Args:
            first: until conditions are known.
            predictor: what compares settings; None for `SimulatedSettings`; docs/communication-tuning.md says why.
            settings: what is chosen from; None for `candidates()`.
            block_bytes: the host steps ranges of so many bytes.

        Raises:
            ConfigurationError: `first` or one of `settings` has no slices, no credit, or slices too large for the wire.
        """
        self._settings = tuple(settings if settings is not None else candidates())
        for each in (first, *self._settings):
            check_tunable(each)
        self._predictor = predictor or SimulatedSettings()
        self._watch = Watch(block_bytes)
        # The setting that was announced last, the first step that has it, and the setting of the steps before.
        self._present, self._since, self._before = first, 1, first
        # Logs of step seconds under the present conditions, with the setting that holds.
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._trial: _Trial | None = None
        self._failed: dict[TransferSettings, tuple[float, ...]] = {}

    def sending(self, step: int) -> TransferSettings:
        """Return the setting of a step: the last one that was announced for it or before."""
        return self._present if step >= self._since else self._before

    def observe(self, seen: StepSeen) -> Change | None:
        """Learn from a step; fall back, or change, or stay (see `TransferTuner.observe`)."""
        check_seen(seen)
        jumped = self._watch.observe(seen)
        if jumped:
            self._trial = None
            self._failed.clear()
            # What is left may be of before the jump: only steps from this one on say what the present setting does now.
            self._recent.clear()
        self._note(seen)
        if self._trial is not None and len(self._trial.logs) >= VERIFY_STEPS:
            verdict, self._trial = self._judge(self._trial, seen.step), None
            if verdict is not None:
                return verdict
        waits = self._trial is not None or self._since > seen.step
        return self._decide(seen.step) if jumped or not waits else None

    def state(self) -> dict[str, Any]:
        """Return the setting only; link and drives are measured again after a resume."""
        return {"slice_bytes": self._present.slice_bytes, "credit_bytes": self._present.credit_bytes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            CheckpointError: it is not the state of AutoByte.
        """
        try:
            sending = TransferSettings("priority", state["slice_bytes"], state["credit_bytes"])
            check_tunable(sending)
        except (KeyError, TypeError, ConfigurationError) as error:
            raise CheckpointError(f"the state of AutoByte cannot be read: {error}") from error
        self._present, self._since, self._before = sending, 1, sending

    def _note(self, seen: StepSeen) -> None:
        """Put the step's length where it belongs: to the trial, or to the setting that may be fallen back to."""
        log = math.log(seen.step_seconds)
        if self._trial is None:
            if seen.sending == self.sending(seen.step):
                self._recent.append(log)
        elif seen.sending == self._trial.sending:
            self._trial.logs.append(log)
        elif seen.sending == self._trial.before:
            self._recent.append(log)
            self._trial.reference = _mean(self._recent)

    def _judge(self, trial: _Trial, step: int) -> Change | None:
        """Keep a setting that has shown what it does, or fall back."""
        worse = _mean(trial.logs) - trial.reference
        self._recent = deque(trial.logs, RECENT_STEPS)
        if not worse > TOLERANCE:  # also if there is nothing to compare with
            return None
        self._failed[trial.sending] = self._watch.logs()
        self._recent.clear()
        reason = f"falls back: steps are {math.expm1(worse):.1%} longer than before"
        return self._announce(step, trial.before, reason, worse)

    def _decide(self, step: int) -> Change | None:
        """Score all candidates; announce the best one if it promises enough."""
        conditions = self._watch.conditions()
        if conditions is None:
            return None
        present = self._present
        settings = [each for each in self._settings if each != present and not self._is_barred(each)]
        scores = self._predictor.log_seconds(conditions, [present, *settings])
        best = int(scores.argmin())
        gain = float(scores[0] - scores[best])
        if not gain > MARGIN:
            return None
        chosen = settings[best - 1]
        reason = f"{self._predictor.name}: {math.expm1(gain):.1%} faster at {conditions.link.bytes_per_second:.3g} B/s"
        self._trial = _Trial(chosen, present, _mean(self._recent))
        return self._announce(step, chosen, reason, gain)

    def _announce(self, step: int, sending: TransferSettings, reason: str, gain: float) -> Change:
        self._before = self.sending(step)
        self._present, self._since = sending, step + LEAST_AHEAD_STEPS
        return Change(self._since, sending, reason, gain)

    def _is_barred(self, sending: TransferSettings) -> bool:
        """Say whether a setting failed under conditions like these."""
        return sending in self._failed and self._moved(self._failed[sending]) < FORGIVE

    def _moved(self, since: tuple[float, ...]) -> float:
        return max(abs(now - then) for now, then in zip(self._watch.logs(), since, strict=True))


def _mean(logs: Sequence[float] | deque[float]) -> float:
    """Return their mean; NaN if there are none."""
    return sum(logs) / len(logs) if logs else math.nan

"""Where a synchronous run stands, and when a round of it is over. Pure."""

from __future__ import annotations

import math

from host.config.job_file import JobConfig
from host.training.sync.round_totals import RoundTotals


class RunProgress:
    """Counts one round after the other, and the steps of all.

    A round has whole epochs, or so many steps. Where devices are chosen while the run goes on, steps of few devices
    have fewer records than those of all; such a round has as many records as its steps would have with all devices.

    Attributes:
        rounds: that are over.
        accuracy: after the last of them.
        step: number of the last step.
        epochs: that have ended in this round.
        carried: records of this round that came before its ledger began, for it was cut short.
        in_round: of the state that was restored last: steps, records and epochs of the round that was going on.
        cut_short: whether the last round ended before its last step, for a pause was asked for.
        ended_seconds: when the last step ended, or the round began, by a clock of the caller's.
    """

    def __init__(self, job: JobConfig, step_records: int | None) -> None:
        """Begin with the first round.

        Args:
            job: says how long rounds are.
            step_records: of a step of all devices, where devices are chosen; None where all take part.
        """
        self._job, self._steps = job, job.sync.round_steps
        both = self._steps is not None and step_records is not None
        self._records = (self._steps or 0) * (step_records or 0) if both else None
        self.rounds, self.accuracy, self.step = 0, 0.0, 0
        self.epochs, self.carried = 0, 0
        self.in_round = [0, 0, 0]
        self.cut_short = False
        self.ended_seconds = 0.0

    def over(self, ledger: RoundTotals) -> bool:
        """Return whether the round of `ledger` has all that it should."""
        if self._records is not None:
            return self.carried + ledger.samples >= self._records
        return self.epochs >= self._job.epochs if self._steps is None else ledger.count >= self._steps

    def over_with(self, ledger: RoundTotals, records: int, steps: int = 1) -> bool:
        """Return whether a round is over with so many more steps, of so many records; epochs say so themselves."""
        if self._records is not None:
            return self.carried + ledger.samples + records >= self._records
        return self._steps is not None and ledger.count + steps >= self._steps

    def steps_left(self, ledger: RoundTotals, records: int) -> int | None:
        """Return how many steps the run has left; None if epochs decide.

        Args:
            ledger: of the present round.
            records: of a step from now on.
        """
        if self._steps is None:
            return None
        if self._records is None:
            return self._job.rounds * self._steps - self.step
        left = (self._job.rounds - self.rounds) * self._records - self.carried - ledger.samples
        return max(0, math.ceil(left / max(1, records)))

    def epochs_left(self) -> int:
        """Return how many epochs are left behind the present one."""
        return max(0, (self._job.rounds - self.rounds) * self._job.epochs - self.epochs - 1)

    def step_seconds(self, now_seconds: float) -> float:
        """Return the seconds since the last step ended: another one has now."""
        before, self.ended_seconds = self.ended_seconds, now_seconds
        return now_seconds - before

    def count_missed(self, ledger: RoundTotals) -> None:
        """Have the ledger of a round that was taken over count the steps that others have taken."""
        steps, samples, self.epochs = self.in_round
        ledger.missed(steps, samples)
        self.in_round = [0, 0, 0]

    def end_round(self, ledger: RoundTotals, accuracy: float) -> None:
        """Go on to the next round; if this one was cut short, that is the rest of it."""
        self.cut_short = not self.over(ledger)
        self.epochs, self.carried = 0, self.carried + ledger.samples if self.cut_short else 0
        self.rounds, self.accuracy = self.rounds + 1, accuracy

"""End of a round of a synchronous run. Pure."""

from __future__ import annotations

import math

from host.config.job_file import JobConfig
from host.training.sync.round_totals import RoundTotals


class RoundEnd:
    """Counts one round after the other.

    A round has whole epochs, or so many steps. Where devices are chosen while the run goes on, steps of few devices
    have fewer records than those of all; such a round has as many records as its steps would have with all devices.

    Attributes:
        epochs: that have ended in this round.
        carried: records of this round that came before its ledger began, for it was cut short.
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
        self.epochs, self.carried = 0, 0

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

    def steps_left(self, rounds: int, step: int, ledger: RoundTotals, records: int) -> int | None:
        """Return how many steps of so many records the run has left; None if epochs decide.

        Args:
            rounds: that are left, with the one of `ledger`.
            step: number of the last step of the run.
            ledger: of the present round.
            records: of a step from now on.
        """
        if self._steps is None:
            return None
        if self._records is None:
            return self._job.rounds * self._steps - step
        left = rounds * self._records - self.carried - ledger.samples
        return max(0, math.ceil(left / max(1, records)))

    def end(self, ledger: RoundTotals) -> bool:
        """Go on to the next round, and return whether this one was cut short: the next one is then the rest of it."""
        short = not self.over(ledger)
        self.epochs, self.carried = 0, self.carried + ledger.samples if short else 0
        return short

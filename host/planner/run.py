"""A run that chooses its devices: what was decided goes to its directory and its events; it may end with that."""

from __future__ import annotations

from pathlib import Path

from csd_emu.timeline import HOST
from firmware_agent.errors import ConfigurationError
from host.accounting import Accountant
from host.planner.decider import Decided
from host.planner.planning import Planning
from host.planner.report import write_plan
from host.records import OnEvent, What


class PlannedRun:
    """The planning of one run.

    Attributes:
        tuner: for the run's training.
    """

    def __init__(
        self,
        planning: Planning,
        directory: Path,
        clock: str,
        accountant: Accountant,
        on_event: OnEvent,
        only: bool = False,
    ) -> None:
        """Prepare; planning begins with the first step, after what a resumed run restores.

        Args:
            planning: what is chosen from.
            directory: of the run.
            clock: of its seconds.
            accountant: told which drives are off, where the job says so.
            on_event: called with device, what happened, and more about it.
            only: whether the run ends when it has decided.
        """
        self._planning, self._directory, self._clock = planning, directory, clock
        self._on_event, self._only = on_event, only
        self.tuner = planning.make_tuner(self._decided, lambda text: on_event(HOST, What.NOTE, text))
        if not planning.rules.constraints.unused_powered:
            accountant.powered_off = self.tuner.idle

    @property
    def over(self) -> bool:
        """Whether the run shall end: all that was asked for is decided, or nothing can be."""
        return self.tuner.error is not None or (self._only and self.tuner.decided)

    def check(self) -> None:
        """Return if it could be decided who trains.

        Raises:
            ConfigurationError: nothing is feasible; the run's records and weights are to be written before.
        """
        if (error := self.tuner.error) is not None:
            alike = ", on every server alike" if self._planning.cluster.sides else ""
            raise ConfigurationError(
                f"{error}; what was trained until here is kept: change planner in {self._directory / 'job.yaml'} and "
                f"go on with csd-emu run --resume {self._directory}{alike}"
            ) from error

    def _decided(self, decided: Decided) -> None:
        report = self._planning.describe(decided, self._clock)
        write_plan(self._directory, report)
        told = f"planner: {report.chosen.name} was chosen ({report.prefer}, {report.sure:.0%} sure, {self._clock}):"
        self._on_event(HOST, What.NOTE, " ".join([told, *report.reasons]))
        for note in report.notes:
            self._on_event(HOST, What.NOTE, note)

"""A run that selects its devices: the decision goes to its directory and its events, and may end the run."""

from __future__ import annotations

from pathlib import Path

from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import ConfigurationError
from host.core.records import EventKind, OnEvent
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.selection_report import write_plan
from host.training.accounting import Accountant
from host.training.selection.planning import Planning


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
        self.tuner = planning.make_tuner(self._decided, lambda text: on_event(HOST, EventKind.NOTE, text))
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

    def _decided(self, decided: TrialDecision) -> None:
        report = self._planning.describe(decided, self._clock)
        write_plan(self._directory, report)
        told = f"planner: {report.chosen.name} was chosen ({report.prefer}, {report.sure:.0%} sure, {self._clock}):"
        self._on_event(HOST, EventKind.NOTE, " ".join([told, *report.reasons]))
        for note in report.notes:
            self._on_event(HOST, EventKind.NOTE, note)

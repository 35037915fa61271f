"""Recording of a planner's inputs, from which another planner can reach the same state. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from firmware_agent.common.errors import ConfigurationError
from host.policies.selection.cluster import Cluster, Configuration, Trial, TrialStep
from host.policies.selection.planner_protocol import Decider
from host.policies.selection.selection_rules import SelectionPlan


class Observed(msgspec.Struct, frozen=True, tag=True):
    """The steps of a trial."""

    trial: Trial
    seen: list[TrialStep]


class Lost(msgspec.Struct, frozen=True, tag=True):
    """A node takes part in nothing any more."""

    node: str


class PlannerQuery(msgspec.Struct, frozen=True, tag=True):
    """What to measure next, or with `last` what is best: it settles batches on what is known by then."""

    last: bool


Call = Observed | Lost | PlannerQuery


class RecordedPlanner:
    """A `Decider` that keeps what it was asked and told, in order; what it answers follows from that alone."""

    def __init__(self, planner: Decider) -> None:
        """Take a planner that has seen nothing."""
        self._planner = planner
        self._calls: list[Call] = []

    @property
    def cluster(self) -> Cluster:
        """See `Decider`."""
        return self._planner.cluster

    def next_trial(self) -> Trial | None:
        """See `Decider`."""
        self._calls.append(PlannerQuery(last=False))
        return self._planner.next_trial()

    def observe(self, trial: Trial, seen: Sequence[TrialStep]) -> None:
        """See `Decider`."""
        self._calls.append(Observed(trial, list(seen)))
        self._planner.observe(trial, seen)

    def lose(self, node: str) -> None:
        """See `Decider`."""
        self._calls.append(Lost(node))
        self._planner.lose(node)

    def decide(self) -> SelectionPlan:
        """See `Decider`."""
        self._calls.append(PlannerQuery(last=True))
        return self._planner.decide()

    def choose_nodes(self, configuration: Configuration) -> tuple[str, ...]:
        """See `Decider`."""
        return self._planner.choose_nodes(configuration)

    def state(self) -> list[Any]:
        """Return what it was asked and told, as JSON takes it."""
        builtins: list[Any] = msgspec.to_builtins(self._calls)
        return builtins

    def load_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Ask and tell it the same as another, of which this is the `state`.

        Raises:
            msgspec.ValidationError: it is none.
        """
        for call in msgspec.convert(state, list[Call]):
            with contextlib.suppress(ConfigurationError):  # the other one was told so too
                self._repeat(call)

    def _repeat(self, call: Call) -> None:
        match call:
            case Observed(trial, seen):
                self.observe(trial, seen)
            case Lost(node):
                self.lose(node)
            case PlannerQuery(last=True):
                self.decide()
            case _:
                self.next_trial()

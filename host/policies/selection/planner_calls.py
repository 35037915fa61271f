"""What a planner was asked and told, from which another planner can reach the same state. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec

from firmware_agent.common.errors import ConfigurationError
from host.policies.selection.cluster import Trial, TrialStep
from host.policies.selection.planner_protocol import Decider


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


PlannerCall = Observed | Lost | PlannerQuery


def repeat(calls: Iterable[PlannerCall], planner: Decider) -> None:
    """Ask and tell a planner that has seen nothing the same as another; what it answers follows from that alone."""
    for call in calls:
        with contextlib.suppress(ConfigurationError):  # the other one was told so too
            match call:
                case Observed(trial, seen):
                    planner.observe(trial, seen)
                case Lost(node):
                    planner.lose(node)
                case PlannerQuery(last=True):
                    planner.decide()
                case _:
                    planner.next_trial()

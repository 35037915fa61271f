"""What a run's planning asks of a planner, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from host.planner.cluster import Cluster, Configuration, Seen, Trial
from host.planner.rules import Plan
from host.tuning.base import Tuner


class Decider(Protocol):
    """What a `PlanningTuner` asks of a planner (see `host.planner.planner.Planner`)."""

    @property
    def cluster(self) -> Cluster:
        """What it chooses from."""

    def next_trial(self) -> Trial | None:
        """Return what to measure next; None if enough is known."""

    def observe(self, trial: Trial, seen: Sequence[Seen]) -> None:
        """Take the steps of a trial."""

    def lose(self, node: str) -> None:
        """Note that a node takes part in nothing any more."""

    def decide(self) -> Plan:
        """Return what is best; ConfigurationError: nothing is feasible."""

    def choose_nodes(self, configuration: Configuration) -> tuple[str, ...]:
        """Return which nodes train in a configuration."""


@dataclass(frozen=True)
class Tried:
    """A trial that was taken, and what its steps cost."""

    trial: Trial
    seen: tuple[Seen, ...]


@dataclass(frozen=True)
class Decided:
    """What came of planning.

    Attributes:
        plan: ranked configurations.
        batches: node -> records per step, of those that train.
        tried: what was measured.
        step: after which it was decided, or taken over from another server.
        lost: nodes that were lost meanwhile.
    """

    plan: Plan
    batches: Mapping[str, int]
    tried: tuple[Tried, ...]
    step: int
    lost: tuple[str, ...] = ()


MakeInner = Callable[[Sequence[int], Sequence[int]], Tuner]
"""Makes what tunes the nodes of these numbers, given their batches to begin with."""

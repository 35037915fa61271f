"""Protocol between a run's planning and a planner, and the decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from host.core.tuning.batch_tuner import BatchTuner
from host.policies.selection.cluster import Cluster, Configuration, Estimate, Trial, TrialResult, TrialStep
from host.policies.selection.selection_rules import SelectionPlan


class Decider(Protocol):
    """What a `PlanningTuner` asks of a planner (see `host.policies.selection.planner.Planner`)."""

    @property
    def cluster(self) -> Cluster:
        """What it chooses from."""

    def next_trial(self) -> Trial | None:
        """Return what to measure next; None if enough is known."""

    def observe(self, trial: Trial, seen: Sequence[TrialStep]) -> None:
        """Take the steps of a trial."""

    def lose(self, node: str) -> None:
        """Note that a node takes part in nothing any more."""

    def decide(self) -> SelectionPlan:
        """Return what is best; ConfigurationError: nothing is feasible."""

    def choose_nodes(self, configuration: Configuration) -> tuple[str, ...]:
        """Return which nodes train in a configuration."""


def batches_by_node(planner: Decider, chosen: Trial | Estimate) -> dict[str, int]:
    """Return node -> records per step, of those that take part."""
    pairs = zip(planner.cluster.kinds, chosen.batches, strict=True)
    of_kind = {node: batch for kind, batch in pairs for node in kind.nodes}
    return {node: of_kind[node] for node in planner.choose_nodes(chosen.configuration)}


@dataclass(frozen=True)
class TrialDecision:
    """What came of planning.

    Attributes:
        plan: ranked configurations.
        batches: node -> records per step, of those that train.
        tried: what was measured.
        step: after which it was decided, or taken over from another server.
        lost: nodes that were lost meanwhile.
    """

    plan: SelectionPlan
    batches: Mapping[str, int]
    tried: tuple[TrialResult, ...]
    step: int
    lost: tuple[str, ...] = ()


MakeInner = Callable[[Sequence[int], Sequence[int]], BatchTuner]
"""Makes what tunes the nodes of these numbers, given their batches to begin with."""

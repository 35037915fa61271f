"""Protocol between a run's planning and a planner, and the decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from host.core.tuning.batch_tuner import BatchTuner
from host.policies.selection.cluster import Cluster, Configuration, Estimate, Trial, TrialStep
from host.policies.selection.selection_rules import PlannedAgain, SelectionPlan


class Decider(Protocol):
    """What a `PlanningTuner` asks of a planner (see `host.policies.selection.planner.Planner`)."""

    @property
    def cluster(self) -> Cluster:
        """What it chooses from."""

    @property
    def follows_noise(self) -> bool:
        """Whether the critical batch is to be told with each further look."""

    def next_trial(self) -> Trial | None:
        """Return what to measure next; None if enough is known."""

    def observe(self, trial: Trial, seen: Sequence[TrialStep]) -> None:
        """Take the steps of a trial."""

    def lose(self, node: str) -> None:
        """Note that a node takes part in nothing any more."""

    def regain(self, node: str) -> None:
        """Note that a node that was lost may take part again."""

    def decide(self) -> SelectionPlan:
        """Return what is best; ConfigurationError: nothing is feasible."""

    def look_again(self, changed: Mapping[str, Sequence[tuple[int, float]]], again: PlannedAgain) -> None:
        """Plan what is left; `changed` has (records, seconds) of the last steps of nodes whose level is another one."""

    def record_seconds(self, batches: Mapping[str, int]) -> dict[str, float]:
        """Return node -> seconds in which it is expected to compute a record; of nodes with these records per step."""

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
        cluster: from what it was chosen: a node whose level changed is of a kind of its own.
        plan: ranked configurations.
        batches: node -> records per step, of those that train.
        step: after which it was decided, or taken over from another server.
        lost: nodes that were lost meanwhile.
    """

    cluster: Cluster
    plan: SelectionPlan
    batches: Mapping[str, int]
    step: int
    lost: tuple[str, ...] = ()


MakeInner = Callable[[Sequence[int], Sequence[int], float | None], BatchTuner]
"""Makes what tunes the nodes of these numbers, given their batches to begin with, and what a step of these takes beside
the slowest node's computing, in seconds, as it was measured; None if nothing was."""

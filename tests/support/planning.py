"""A planner that measures what it is told to, for tests of what drives one; clusters to choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from csd_emu.perfmodel.timeline import Link
from csd_emu.profiles import get_profile
from firmware_agent.common.errors import ConfigurationError
from host.core.tuning.batch_tuner import BatchTuner, StepCost
from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.cluster import (
    Cluster,
    Configuration,
    DeviceKind,
    Estimate,
    Range,
    Trial,
    TrialResult,
    TrialStep,
)
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.planning_tuner import PlanningTuner
from host.policies.selection.selection_rules import PlannedAgain, SelectionPlan
from host.training.first_batches import NO_OVERHEAD
from host.training.sync_plan import SyncPlan


def cluster(drives: int = 2, slow: int = 2, host: bool = True) -> Cluster:
    """Return newports csd-00 and on, generic-a53 behind them, and the host if it trains."""
    names = [f"csd-{number:02d}" for number in range(drives + slow)]
    kinds = [
        DeviceKind("newport", tuple(names[:drives]), get_profile("newport"), _speed("newport", 1.0)),
        DeviceKind("generic-a53", tuple(names[drives:]), get_profile("generic-a53"), _speed("generic-a53", 3.0)),
    ]
    if host:
        server = get_profile("xeon-4108")
        kinds.append(DeviceKind("host", ("host",), server, _speed("host", 0.1), local=True))
    kept = tuple(kind for kind in kinds if kind.nodes)
    return Cluster(kept, get_profile("xeon-4108"), Link(1e8, 1e-4), 40_000, 40_000, 72)


def nodes(of: Cluster) -> list[str]:
    return [node for kind in of.kinds for node in kind.nodes]


def cost(records: dict[str, int], seconds: float = 1.0, joules: float = 10.0, missing: Sequence[str] = ()) -> StepCost:
    return StepCost(records, dict.fromkeys(records, seconds / 2), seconds, {"host": joules}, frozenset(missing))


class FakePlanner:
    """Has every configuration of `wanted` measured, once; the one whose steps took the fewest seconds wins."""

    def __init__(
        self, of: Cluster, wanted: Sequence[Configuration], steps: int = 2, batch: int = 4, refuses: str = ""
    ) -> None:
        self.cluster, self.refuses = of, refuses
        self._wanted, self._steps, self._batch = list(wanted), steps, batch
        self.observed: list[tuple[Trial, list[TrialStep]]] = []
        self.lost: list[str] = []
        self.known: dict[str, float] = {}
        self.changed: list[tuple[dict[str, Sequence[tuple[int, float]]], PlannedAgain]] = []
        self.follows_noise = False

    def next_trial(self) -> Trial | None:
        while self._wanted:
            configuration = self._wanted.pop(0)
            if self._possible(configuration):
                return Trial(configuration, self._batches(configuration), self._steps, "it was asked for")
        return None

    def observe(self, trial: Trial, seen: Sequence[TrialStep]) -> None:
        self.observed.append((trial, list(seen)))

    def lose(self, node: str) -> None:
        self.lost.append(node)
        if not any(self._left(kind) for kind in self.cluster.kinds):
            raise ConfigurationError("there is no device to train with")

    def regain(self, node: str) -> None:
        self.lost.remove(node)

    def decide(self) -> SelectionPlan:
        if self.refuses:
            raise ConfigurationError(self.refuses)
        means = {
            trial.configuration: float(np.mean([one.step_seconds for one in seen]))
            for trial, seen in self.observed
            if self._possible(trial.configuration)
        }
        every = tuple(len(self._left(kind)) for kind in self.cluster.kinds)
        best = min(means, key=means.__getitem__, default=every)
        chosen = self._estimate(best, means.get(best, 1.0))
        others = [self._estimate(each, mean) for each, mean in means.items() if each != best]
        trials = tuple(TrialResult(trial, tuple(seen)) for trial, seen in self.observed)
        return SelectionPlan(chosen, (chosen, *others), (chosen,), ("it was the fastest",), 1.0, 0.0, trials)

    def look_again(self, changed: Mapping[str, Sequence[tuple[int, float]]], again: PlannedAgain) -> None:
        self.changed.append((dict(changed), again))
        self.known |= {node: steps[-1][1] / steps[-1][0] for node, steps in changed.items()}

    def record_seconds(self, batches: Mapping[str, int]) -> dict[str, float]:
        return {node: self.known.get(node, 1.0 / self._batch) for node in batches}

    def choose_nodes(self, configuration: Configuration) -> tuple[str, ...]:
        pairs = zip(self.cluster.kinds, configuration, strict=True)
        return tuple(node for kind, count in pairs for node in self._left(kind)[:count])

    def _left(self, kind: DeviceKind) -> list[str]:
        return [node for node in kind.nodes if node not in self.lost]

    def _possible(self, configuration: Configuration) -> bool:
        return len(self.choose_nodes(configuration)) == sum(configuration)

    def _batches(self, configuration: Configuration) -> tuple[int, ...]:
        return tuple(self._batch if count else 0 for count in configuration)

    def _estimate(self, configuration: Configuration, seconds: float) -> Estimate:
        one = Range(seconds, seconds, seconds)
        return Estimate(configuration, self._batches(configuration), seconds, 100.0, one, one, one, one)


class Choosing:
    """Makes tuners for runs, and keeps what they decide."""

    def __init__(self, of: Cluster, *wanted: Configuration, batch: int = 4) -> None:
        self._of, self._wanted, self._batch = of, wanted, batch
        self.planners: list[FakePlanner] = []
        self.tuners: list[PlanningTuner] = []
        self.decided: list[TrialDecision] = []

    @property
    def seen(self) -> dict[Configuration, list[float]]:
        """Seconds of the steps of each trial, of the last planner."""
        return {trial.configuration: [one.step_seconds for one in seen] for trial, seen in self.planners[-1].observed}

    def __call__(self, plan: SyncPlan) -> PlanningTuner:
        def planner() -> FakePlanner:
            self.planners.append(FakePlanner(self._of, self._wanted, 2, self._batch))
            return self.planners[-1]

        def inner(numbers: Sequence[int], batches: Sequence[int], _: float | None) -> BatchTuner:
            return plan.of_nodes(numbers, batches, NO_OVERHEAD).make_tuner()

        first = dict(zip(plan.nodes, plan.batches, strict=True))
        self.tuners.append(PlanningTuner(first, planner, inner, self.decided.append))
        return self.tuners[-1]

    def over(self) -> bool:
        return bool(self.tuners) and self.tuners[-1].decided


def _speed(name: str, factor: float) -> SpeedTable:
    return SpeedTable(name, factor * np.arange(1, 65, dtype=np.float64))

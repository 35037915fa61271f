"""Costs of every configuration of a small array, as it was run, and the worth of a choice beside them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from csd_lab.bench.planner.planner_cases import DEADLINE, TIE
from csd_lab.bench.planner.planner_play import ChoiceOutcome
from host.config.preference import Preference
from host.policies.selection.cluster import Cluster, Configuration
from host.policies.selection.planner_protocol import TrialDecision


@dataclass(frozen=True)
class Cost:
    """What a configuration costs, as it was run.

    Attributes:
        record_seconds: of the array, over records.
        record_joules: of everything that is counted, over records.
        records: of the whole training: public ones, and private ones of the drives that take part.
        steps: that were run.
    """

    record_seconds: float
    record_joules: float
    records: float
    steps: int

    @property
    def seconds(self) -> float:
        """Of the whole training."""
        return self.record_seconds * self.records

    @property
    def joules(self) -> float:
        """Of the whole training."""
        return self.record_joules * self.records

    def score(self, preference: Preference) -> float:
        """Return what is preferred, of a record: not every configuration trains on as many. The less the better."""
        return preference.score(self.record_seconds, self.record_joules / self.record_seconds, self.record_joules)


def all_nodes(cluster: Cluster) -> dict[Configuration, tuple[str, ...]]:
    """Return each configuration but the empty one, and the first so many nodes of each kind."""
    return {
        counts: tuple(node for kind, count in zip(cluster.kinds, counts, strict=True) for node in kind.nodes[:count])
        for counts in product(*(range(len(kind.nodes) + 1) for kind in cluster.kinds))
        if any(counts)
    }


def find_deadline(costs: Mapping[Configuration, Cost]) -> float:
    """Return the deadline of `power`, in seconds: see `csd_lab.bench.planner.planner_cases.DEADLINE`."""
    return DEADLINE * min(cost.seconds for cost in costs.values())


def find_best(
    costs: Mapping[Configuration, Cost], preference: Preference, deadline_seconds: float = math.inf
) -> Configuration:
    """Return the best configuration of those in time."""
    in_time = [configuration for configuration, cost in costs.items() if cost.seconds <= deadline_seconds]
    return min(in_time, key=lambda configuration: costs[configuration].score(preference))


def judge_decided(
    costs: Mapping[Configuration, Cost],
    decided: TrialDecision,
    preference: Preference,
    deadline_seconds: float = math.inf,
) -> ChoiceOutcome:
    """Return what a choice is worth, and its estimates, beside all configurations as they were run."""
    chosen = decided.plan.chosen
    cost, best = costs[chosen.configuration], find_best(costs, preference, deadline_seconds)
    kept = cost.seconds <= (1 + TIE) * deadline_seconds
    lost = math.exp(cost.score(preference) - costs[best].score(preference)) - 1
    regret = max(0.0, lost, cost.seconds / deadline_seconds - 1)
    return ChoiceOutcome(
        chosen.configuration,
        chosen.batches,
        hit=kept and regret <= TIE,
        same=chosen.configuration == best,
        kept=kept,
        regret=regret,
        seconds=cost.seconds,
        joules=cost.joules,
        trial_configurations=len({each.trial.configuration for each in decided.tried}),
        trial_steps=sum(len(each.seen) for each in decided.tried),
        overhead=overhead(decided, cost),
        seconds_error=chosen.seconds.value / cost.seconds - 1,
        joules_error=chosen.joules.value / cost.joules - 1,
        sure=decided.plan.sure,
    )


def overhead(decided: TrialDecision, cost: Cost) -> float:
    """Return the seconds of trials, less what the choice would have taken for their records, over the training's."""
    spent = sum(one.step_seconds for each in decided.tried for one in each.seen)
    trials = [(each.trial, len(each.seen)) for each in decided.tried]
    records = sum(steps * _step_records(trial.configuration, trial.batches) for trial, steps in trials)
    return (spent - records * cost.record_seconds) / cost.seconds


def _step_records(configuration: Sequence[int], batches: Sequence[int]) -> int:
    return sum(count * batch for count, batch in zip(configuration, batches, strict=True))

"""Planners in the hidden world of `bench planner`: ours, Gu et al.'s, rules; the truth judges their choices. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from csd_lab.bench.planner.planner_cases import TIE, PlannerCase, Truth, cost_of, fixed_rules
from csd_lab.bench.planner.planner_world import World
from host.policies.selection.cluster import Cluster, Configuration, Trial
from host.policies.selection.planner import Planner, SelectionPlan
from host.policies.selection.planner_protocol import Decider, batches_by_node
from host.policies.selection.selection_rules import Constraints, SelectionRules

# More trials than a planner would ever make: one that does not end is broken.
_MOST_TRIALS = 1000


@dataclass(frozen=True)
class ChoiceOutcome:
    """What came of a choice.

    Attributes:
        configuration: that was chosen.
        batches: of each kind.
        hit: whether its metric is the best's within 1 %, and it is in time.
        same: whether it has the devices of the best, whatever its batches.
        kept: whether it is in time, within 1 %.
        regret: metric / best - 1.
        seconds, joules: what the whole training truly costs with it.
        trial_configurations, trial_steps: that were run to learn.
        trial_share: share of the job's records that those steps trained on.
        overhead: seconds of those steps less what the choice would have taken for their records, over `seconds`.
        seconds_error, joules_error: estimate / truth - 1; None where nothing was estimated.
        sure: what the planner says of itself; None where it does not.
        ranked: what its other estimates were worth (`judge_ranked`); None where nobody looked.
        wall_seconds: of the planner's own computing.
    """

    configuration: Configuration
    batches: tuple[int, ...]
    hit: bool
    same: bool
    kept: bool
    regret: float
    seconds: float
    joules: float
    trial_configurations: int = 0
    trial_steps: int = 0
    trial_share: float = 0.0
    overhead: float = 0.0
    seconds_error: float | None = None
    joules_error: float | None = None
    sure: float | None = None
    ranked: dict[str, float] | None = None
    wall_seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """Return it for a report."""
        counts = {name: [int(each) for each in getattr(self, name)] for name in ("configuration", "batches")}
        return asdict(self) | counts


def plan_rules(truth: Truth, case: PlannerCase, steps: int) -> SelectionRules:
    """Return what the planner is told to go by."""
    constraints = Constraints(deadline_seconds=truth.deadline_seconds, unused_powered=case.unused_powered)
    return SelectionRules(truth.preference, constraints, steps=steps, tuning=truth.tuning)


def play(
    truth: Truth,
    case: PlannerCase,
    steps: int,
    generator: np.random.Generator,
    make: Callable[[Cluster, SelectionRules, float], Any] = Planner,
    ranked: bool = False,
) -> ChoiceOutcome:
    """Let a planner try what it wants in the world, and judge what it decides.

    Args:
        truth: of the case.
        case: it.
        steps: of each trial.
        generator: of the trials' noise.
        make: the planner.
        ranked: whether to run everything that it ranks, to judge its estimates.
    """
    world, spent, records, trials, wall = truth.world, 0.0, 0.0, list[Trial](), 0.0
    begin = time.perf_counter()
    planner = make(world.cluster, plan_rules(truth, case, steps), truth.records)
    while (trial := planner.next_trial()) is not None and len(trials) < _MOST_TRIALS:
        wall += time.perf_counter() - begin
        batches = batches_by_node(planner, trial)
        seen = world.take(batches, trial.steps, generator)
        trials.append(trial)
        spent += sum(each.step_seconds for each in seen)
        records += len(seen) * sum(batches.values())
        begin = time.perf_counter()
        planner.observe(trial, seen)
    plan = planner.decide()
    wall += time.perf_counter() - begin
    chosen = plan.chosen
    judged = judge_nodes(truth, batches_by_node(planner, chosen))
    return replace(
        judged,
        trial_configurations=len({trial.configuration for trial in trials}),
        trial_steps=sum(trial.steps for trial in trials),
        trial_share=records / truth.records,
        overhead=(spent - records / truth.records * judged.seconds) / judged.seconds,
        seconds_error=chosen.seconds.value / judged.seconds - 1,
        joules_error=chosen.joules.value / judged.joules - 1,
        sure=plan.sure,
        ranked=judge_ranked(truth, plan, planner) if ranked else None,
        wall_seconds=wall,
    )


def judge_ranked(truth: Truth, plan: SelectionPlan, planner: Decider) -> dict[str, float]:
    """Run everything that a plan ranks, with the plan's batches, and return what its estimates and `sure` are worth.

    ``none_better``: 1 if the choice is in time and nothing else that is ranked and in time is better by more than 1 %.
    Of those that were not measured, ``unmeasured`` in number: ``seconds_error``, ``joules_error``: median of
    |estimate / truth - 1|; ``seconds_covered``, ``joules_covered``: share whose truth lies in the range.
    """
    each_batches = [batches_by_node(planner, each) for each in plan.ranked]
    costs = [cost_of(truth.world, truth.noise, truth.records, batches) for batches in each_batches]
    scores = [truth.score(*cost) if truth.kept(cost[0]) else np.inf for cost in costs]
    found = {"none_better": float(scores[0] < np.inf and scores[0] <= min(scores) + np.log1p(TIE))}
    pairs = [(each, cost) for each, cost in zip(plan.ranked, costs, strict=True) if not each.steps_measured]
    found["unmeasured"] = float(len(pairs))
    if not pairs:
        return found
    for number, name in enumerate(("seconds", "joules")):
        true = np.array([cost[number] for _, cost in pairs])
        ranges = [getattr(each, name) for each, _ in pairs]
        value, low, high = (np.array([getattr(one, of) for one in ranges]) for of in ("value", "low", "high"))
        found[f"{name}_error"] = float(np.median(np.abs(value / true - 1)))
        found[f"{name}_covered"] = float(np.mean((low <= true) & (true <= high)))
    return found


def judge(
    truth: Truth, configuration: Configuration, batches: Sequence[int], nodes: Sequence[str] | None = None
) -> ChoiceOutcome:
    """Return what a choice is worth; without `nodes` the first of each kind take part."""
    own = truth.world.first_nodes(configuration) if nodes is None else nodes
    return judge_nodes(truth, truth.world.spread(own, batches))


def judge_nodes(truth: Truth, batches: Mapping[str, int]) -> ChoiceOutcome:
    """Return what a choice of nodes, with their records of a step, is worth."""
    seconds, joules = cost_of(truth.world, truth.noise, truth.records, dict(batches))
    configuration, own = truth.world.cluster.trial_of(batches)
    return ChoiceOutcome(
        configuration,
        own,
        hit=bool(truth.hit(seconds, joules)),
        same=configuration == truth.configurations[truth.best],
        kept=bool(truth.kept(seconds)),
        regret=float(truth.regret(seconds, joules)),
        seconds=seconds,
        joules=joules,
    )


def play_rules(truth: Truth) -> dict[str, ChoiceOutcome]:
    """Return what comes of the fixed rules; they get the best batches that there are, those of the true curves."""
    rules = fixed_rules(truth.world.cluster)
    known = {configuration: number for number, configuration in enumerate(truth.configurations)}
    return {
        name: judge(truth, configuration, truth.batches[known[configuration]]) for name, configuration in rules.items()
    }


def play_known(truth: Truth) -> ChoiceOutcome:
    """Return what comes of the best devices with the batches that STANNIS plans if it knows how fast they are.

    The truth's own batches are of the curves that each kind's devices were drawn around, not of those devices.
    """
    best = truth.configurations[truth.best]
    return judge(truth, best, truth.world.known_batches(best, truth.tuning))


def play_exhaustive(truth: Truth, steps: int, generator: np.random.Generator) -> ChoiceOutcome:
    """Run a few steps of every configuration and take the best by their means, as Gu et al. do.

    With the best batches that there are, those of the true curves: what is left are too few steps, and what they cost.
    """
    world, spent, records = truth.world, 0.0, 0.0
    costs = list[tuple[float, float]]()
    for configuration, batches in zip(truth.configurations, truth.batches, strict=True):
        each = world.spread(world.first_nodes(configuration), batches)
        seen = world.take(each, steps, generator)
        need = truth.records / sum(each.values())
        seconds, joules = (float(np.mean([getattr(one, name) for one in seen])) for name in ("step_seconds", "joules"))
        costs.append((need * seconds, need * joules))
        spent += steps * seconds
        records += steps * sum(each.values())
    chosen = best_of(truth, costs)
    judged = judge(truth, truth.configurations[chosen], truth.batches[chosen])
    return replace(
        judged,
        trial_configurations=len(costs),
        trial_steps=len(costs) * steps,
        trial_share=records / truth.records,
        overhead=(spent - records / truth.records * judged.seconds) / judged.seconds,
        seconds_error=costs[chosen][0] / judged.seconds - 1,
        joules_error=costs[chosen][1] / judged.joules - 1,
    )


def best_of(truth: Truth, costs: Sequence[tuple[float, float]]) -> int:
    """Return the number of the best of some seconds and joules; the fastest if none keeps the deadline."""
    deadline = truth.deadline_seconds
    kept = [number for number, (seconds, _) in enumerate(costs) if deadline is None or seconds <= deadline]
    if not kept:
        return min(range(len(costs)), key=lambda number: costs[number][0])
    return min(kept, key=lambda number: truth.score(*costs[number]))


def play_model(truth: Truth, case: PlannerCase) -> ChoiceOutcome:
    """Return what our planner decides before it has tried anything: from profiles and nominal tables alone."""
    plan = Planner(truth.world.cluster, plan_rules(truth, case, 0), truth.records).decide()
    judged = judge(truth, plan.chosen.configuration, plan.chosen.batches)
    return replace(
        judged,
        seconds_error=plan.chosen.seconds.value / judged.seconds - 1,
        joules_error=plan.chosen.joules.value / judged.joules - 1,
        sure=plan.sure,
    )


def time_planning(
    world: World, rules: SelectionRules, records: float, generator: np.random.Generator
) -> list[dict[str, float]]:
    """Return the wall seconds of each `next_trial` of a planning, with those of a `decide` after it."""
    planner = Planner(world.cluster, rules, records)
    rows = list[dict[str, float]]()
    while len(rows) < _MOST_TRIALS:
        begin = time.perf_counter()
        trial = planner.next_trial()
        tried = time.perf_counter()
        planner.decide()
        rows.append({"next_trial": tried - begin, "decide": time.perf_counter() - tried})
        if trial is None:
            break
        batches = world.spread(planner.choose_nodes(trial.configuration), trial.batches)
        planner.observe(trial, world.take(batches, trial.steps, generator))
    return rows

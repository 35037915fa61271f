"""Whole jobs of `bench planner` in which a drive is slowed: trials, the choice, and the training after it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from csd_lab.bench.planner.planner_cases import STEPS, TUNING, PlannerCase, Truth, cost_of, find_truth, nominal_batches
from csd_lab.bench.planner.planner_disturbance import DriveDisturbance, draw_disturbance
from csd_lab.bench.planner.planner_draws import StepNoise, draw_noise
from csd_lab.bench.planner.planner_oracle import oracle_costs
from csd_lab.bench.planner.planner_play import plan_rules
from csd_lab.bench.planner.planner_ranges import PlannerRanges
from csd_lab.bench.planner.planner_world import Steps
from host.core.tuning.batch_tuner import BatchTuner, StepCost
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.make import TunerArguments, make_rules, make_tuner
from host.policies.selection.planner import Planner
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.planning_tuner import PlanningTuner

TRIAL_STEPS = 5
# Where neither batches nor disturbances have changed for so many steps, those until the next disturbance are run at
# once, and nobody watches them.
_CALM_STEPS = 150


@dataclass(frozen=True)
class JobOutcome:
    """What a job came to.

    Attributes:
        seconds, joules: of all of it.
        steps: how many it took.
        decisions: (step, names of the nodes) of each choice.
        batches: records per step of the nodes that trained at its end.
    """

    seconds: float
    joules: float
    steps: int
    decisions: tuple[tuple[int, tuple[str, ...]], ...]
    batches: dict[str, int]

    @property
    def chosen(self) -> tuple[str, ...]:
        """The nodes that trained at its end."""
        return self.decisions[-1][1] if self.decisions else ()


class JobUnderWay:
    """A job under way.

    Attributes:
        seconds, joules: until now.
        step: how many were taken.
        left: records that are still to be trained on.
    """

    def __init__(self, truth: Truth, noise: StepNoise, disturbances: Sequence[DriveDisturbance]) -> None:
        """Begin; `noise` is that of its steps, taken in turn."""
        self.seconds, self.joules, self.step, self.left = 0.0, 0.0, 0, truth.records
        self._world, self._noise, self._disturbances = truth.world, noise, disturbances
        self._calm, self._before = 0, (dict[str, int](), list[bool]())

    def run(self, tuner: PlanningTuner) -> None:
        """Take a step with the tuner's batches and show it to it, or many where nothing has changed for long."""
        batches = {node: int(batch) for node, batch in zip(self._world.nodes, tuner.batches, strict=True) if batch}
        acting = [each.slows_in(self.step, self.seconds) for each in self._disturbances]
        now = batches, acting
        self._calm, self._before = (self._calm + 1 if now == self._before and tuner.decided else 0), now
        if self._calm >= _CALM_STEPS:
            self._take(self._world.run(batches, self._disturb(batches, slice(None))), batches, many=True)
            return
        row = self.step % len(self._noise.link)
        part = slice(row, row + 1)
        done = self._world.run(batches, self._disturb(batches, part))
        own = dict(zip(done.nodes, done.compute_seconds[0].tolist(), strict=True))
        probes = tuner.probes(self.step + 1)
        for number in np.flatnonzero(probes):
            probe = {self._world.nodes[number]: int(probes[number])}
            own[self._world.nodes[number]] = float(
                self._world.run(probe, self._disturb(probe, part)).compute_seconds[0, 0]
            )
        self._take(done, batches, many=False)
        taken = {node: own[node] for node in batches}
        tuner.watch(StepCost(batches, taken, float(done.seconds[0]), {"all": float(done.joules[0])}))
        observed = np.array([own.get(node, math.nan) for node in self._world.nodes])
        tuner.observe(self.step, observed, max(0, math.ceil(self.left / sum(batches.values()))))

    def _take(self, done: Steps, batches: dict[str, int], many: bool) -> None:
        """Count a step, or at their mean all until the next disturbance or the end of the job."""
        records, mean = sum(batches.values()), float(done.seconds.mean())
        steps = self.left / records
        if many:
            steps = min([steps, *(each.steps_until(self.step, self.seconds, mean) for each in self._disturbances)])
        else:
            steps = min(1.0, steps)
        self.left -= steps * records
        self.seconds += steps * mean
        self.joules += steps * float(done.joules.mean())
        self.step += math.ceil(steps)

    def _disturb(self, batches: dict[str, int], rows: slice) -> StepNoise:
        """Return noise of steps, slowed where a disturbance does that."""
        device = self._noise.device[rows].copy()
        for each in self._disturbances:
            if each.node in batches and each.slows_in(self.step, self.seconds):
                number = self._world.nodes.index(each.node)
                device[:, number] *= float(each.factors(self._world, np.array([batches[each.node]]))[0])
        return StepNoise(device, self._noise.link[rows], self._noise.meter[rows])


def play_job(
    truth: Truth,
    case: PlannerCase,
    noise: StepNoise,
    disturbances: Sequence[DriveDisturbance] = (),
    looks_again: bool = True,
) -> JobOutcome:
    """Train all of the job's records with the planner and HyperTune, step after step.

    Args:
        truth: of the case: its world and its records.
        case: it.
        noise: of its steps; with the same noise nothing but the disturbances differs.
        disturbances: what happens.
        looks_again: whether the choice is looked at again.
    """
    decisions = list[tuple[int, tuple[str, ...]]]()
    tuner = make_planning_tuner(truth, case, decisions, looks_again)
    job = JobUnderWay(truth, noise, disturbances)
    while job.left > 1e-6:
        job.run(tuner)
    batches = {node: int(batch) for node, batch in zip(truth.world.nodes, tuner.batches, strict=True) if batch}
    return JobOutcome(job.seconds, job.joules, job.step, tuple(decisions), batches)


def play_disturbances(seed: int, case: PlannerCase) -> dict[str, Any]:
    """Return what came of a job without a disturbance, with a blip, and with a change for good, and of the oracle's."""
    truth = find_truth(case, seed)
    noise = job_noise(truth, seed, case)
    quiet = play_job(truth, case, noise)
    local = {node for kind in truth.world.cluster.kinds if kind.local for node in kind.nodes}
    drives = [node for node in truth.world.nodes if node not in local]
    chosen = [node for node in quiet.chosen if node not in local]
    generator = np.random.default_rng((seed, case.number, 5))
    blip, at = draw_disturbance(generator, drives, chosen, PlannerRanges())
    change = replace(blip, at_seconds=at * float(truth.seconds[truth.best]))
    short, long = play_job(truth, case, noise, [blip]), play_job(truth, case, noise, [change])
    kept = play_job(truth, case, noise, [change], looks_again=False)
    still, moved = oracle_costs(truth, noise, change, at)
    return {
        "seed": seed,
        "case": {"model": case.model, "preference": case.preference}
        | {"link_bytes_per_second": case.link_bytes_per_second},
        "disturbance": asdict(blip) | {"change_at": at},
        "blip_loss": loss(truth, short, quiet),
        "blip_loss_choice": loss(truth, chosen_cost(truth, noise, short), chosen_cost(truth, noise, quiet)),
        "quiet_over_oracle": 1 / (1 + loss(truth, quiet, still)),
        "change_over_oracle": 1 / (1 + loss(truth, long, moved)),
        "change_kept_over_oracle": 1 / (1 + loss(truth, kept, moved)),
        "decisions": {"quiet": quiet.decisions, "blip": short.decisions, "change": long.decisions},
    }


def chosen_cost(truth: Truth, noise: StepNoise, outcome: JobOutcome) -> tuple[float, float]:
    """Return seconds and joules of the job with the nodes and batches of its end, undisturbed."""
    return cost_of(truth.world, noise, truth.records, outcome.batches)


def make_planning_tuner(
    truth: Truth, case: PlannerCase, decisions: list[tuple[int, tuple[str, ...]]], looks_again: bool = True
) -> PlanningTuner:
    """Return the planner of a job with `tuner: hypertune`, as a run has it; `decisions` are added to."""
    cluster, nodes = truth.world.cluster, truth.world.nodes
    rules = plan_rules(truth, case, TRIAL_STEPS)
    batches = nominal_batches(cluster, cluster.counts)
    tables = {node: kind.speed for kind in cluster.kinds for node in kind.nodes if kind.speed is not None}
    first = {node: batch for kind, batch in zip(cluster.kinds, batches, strict=True) for node in kind.nodes}

    def inner(numbers: Sequence[int], chosen: Sequence[int], _: float | None) -> BatchTuner:
        names = [nodes[number] for number in numbers]
        own: list[SpeedTable] = [tables[name] for name in names]
        sync = _sync_seconds(truth, names)
        steps = math.ceil(truth.records / sum(chosen))
        arguments = TunerArguments(own, np.array(chosen), names, steps, sync, make_rules(TUNING), True)
        return make_tuner("hypertune", arguments)

    def decided(decision: TrialDecision) -> None:
        decisions.append((decision.step, tuple(decision.batches)))

    # With several servers, whose planning is handed over, nothing is looked at again.
    make = partial(Planner, cluster, rules, truth.records)
    return PlanningTuner(first, make, inner, decided, handed_over=not looks_again)


def _sync_seconds(truth: Truth, nodes: Sequence[str]) -> float:
    """Return what a job is told that the exchange takes: the nominal link's, both ways."""
    cluster = truth.world.cluster
    local = {node for kind in cluster.kinds if kind.local for node in kind.nodes}
    drives = sum(node not in local for node in nodes)
    carried = cluster.link.carry_together(np.full(drives, float(cluster.state_bytes)))
    return 2 * float(carried.max(initial=0.0))


def job_noise(truth: Truth, seed: int, case: PlannerCase) -> StepNoise:
    """Return the noise of a job's steps."""
    return draw_noise(truth.world.draws, STEPS, np.random.default_rng((seed, case.number, 6)))


def loss(truth: Truth, outcome: JobOutcome | tuple[float, float], other: JobOutcome | tuple[float, float]) -> float:
    """Return by what share `outcome` is dearer than `other`, by the preference; of edp and such the geometric mean."""
    preference = truth.preference
    mine, theirs = (each if isinstance(each, tuple) else (each.seconds, each.joules) for each in (outcome, other))
    weight = preference.time + preference.power + preference.energy
    return math.expm1((truth.score(*mine) - truth.score(*theirs)) / weight)

"""The planner on real virtual machines, where each configuration is run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives, array_of, request_run
from csd_lab.bench.planner.bench_planner import summarise
from csd_lab.bench.planner.planner_cases import DEADLINE, TIE
from csd_lab.bench.planner.planner_play import ChoiceOutcome
from firmware_agent.common.errors import DeviceError
from host.app.prepare import RunRequest
from host.config.preference import NAMED, Preference
from host.core.records import RoundRecord
from host.policies.selection.cluster import Cluster, Configuration
from host.policies.selection.planner_protocol import TrialDecision
from host.training.selection.planning import Planning
from host.training.sync.round_totals import RunGuide


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
        trial_configurations=len({each.trial.configuration for each in decided.plan.trials}),
        trial_steps=sum(len(each.seen) for each in decided.plan.trials),
        overhead=overhead(decided, cost),
        seconds_error=chosen.seconds.value / cost.seconds - 1,
        joules_error=chosen.joules.value / cost.joules - 1,
        sure=decided.plan.sure,
    )


def overhead(decided: TrialDecision, cost: Cost) -> float:
    """Return the seconds of trials, less what the choice would have taken for their records, over the training's."""
    spent = sum(one.step_seconds for each in decided.plan.trials for one in each.seen)
    trials = [(each.trial, len(each.seen)) for each in decided.plan.trials]
    records = sum(steps * _step_records(trial.configuration, trial.batches) for trial, steps in trials)
    return (spent - records * cost.record_seconds) / cost.seconds


def _step_records(configuration: Sequence[int], batches: Sequence[int]) -> int:
    return sum(count * batch for count, batch in zip(configuration, batches, strict=True))


MODEL, BATCH = "digits_cnn", 32
DEVICES: list[dict[str, Any]] = [{"profile": "newport", "count": 2}, {"profile": "generic-a53"}]
# Of the host's side. Only the composition of a step knows it, so that one array of machines serves for all.
LINKS = ("100 MB/s", "10 MB/s")
# Of the records, that one drive alone has.
PRIVATE = 0.3
# Of the job that is planned for; it is ended when it is decided who trains.
ROUNDS = 100
TRIAL_STEPS = 5
# Of an oracle's round, worth so many steps of all drives. There are two: torch warms up in the first.
ORACLE_STEPS = 4


def bench_planner_vms(bench: Bench) -> BenchReport:
    """Choices of the planner against the truly best devices on real virtual machines, where each configuration is run.

    Let the planner choose on three virtual drives of two profiles, judged by running every configuration.

    Four preferences and two links. Figures: those of `csd_lab.bench.planner.bench_planner.summarise`; `cases`.
    Clock: counted.
    """
    begin = time.monotonic()
    worlds = measure(bench)
    rows = [row for world in worlds for row in world["cases"]]
    figures = summarise([row["ours"] for row in rows]) | {"cases": float(len(rows))}
    samples = {"devices": DEVICES, "model": MODEL, "batch_size": BATCH, "private": PRIVATE, "worlds": worlds}
    return bench.report("counted", figures, samples | {"wall_seconds": time.monotonic() - begin})


def measure(bench: Bench, links: Sequence[str] = LINKS, engine: str = "qemu") -> list[dict[str, Any]]:
    """Return for each link what each configuration costs, and what was chosen by each preference."""

    async def work(drives: RunningDrives) -> list[dict[str, Any]]:
        worlds = []
        for number, link in enumerate(links):
            world = _World(drives, link, bench.seed, engine)
            worlds.append(await world.judge_all(bench, number / len(links)))
        return worlds

    return bench.on_array(_request(links[0], bench.seed, {}, engine=engine).array, work)


def _request(
    link: str, seed: int, planner: Mapping[str, Any], rounds: int = ROUNDS, engine: str = "qemu", **sync: Any
) -> RunRequest:
    """Return a run of the bench's job with a section ``planner``."""
    job = {
        **{"model": MODEL, "data": {"source": "digits", "private": PRIVATE}, "mode": "sync", "rounds": rounds},
        **{"batch_size": BATCH, "seed": seed, "watchdog": f"{WATCHDOG_SECONDS} s", "learning_rate": 0.1},
        **{"planner": planner, "sync": sync},
    }
    return request_run(array_of("planner-vms", DEVICES, engine, link={"bandwidth": link}), job)


def _planning_of(request: RunRequest) -> Planning:
    if request.planning is None:
        raise RuntimeError("a bench of the planner asked for a job without one")
    return request.planning


def _records_of(request: RunRequest, names: Sequence[str]) -> float:
    """Return the records of the whole training that is planned, with these drives."""
    plan = _planning_of(request).plan
    own = dict(zip(plan.nodes, plan.private_sizes, strict=True))
    return float(ROUNDS * (plan.public_size + sum(own[name] for name in names)))


@dataclass(frozen=True)
class _World:
    """The drives behind one link."""

    drives: RunningDrives
    link: str
    seed: int
    engine: str

    async def judge_all(self, bench: Bench, done: float) -> dict[str, Any]:
        """Run every configuration, let the planner choose by each preference, and judge it."""
        nodes = all_nodes(_planning_of(self._plan({})).cluster)
        every, costs = {name for names in nodes.values() for name in names}, dict[Configuration, Cost]()
        for configuration, names in nodes.items():
            bench.progress.stage(f"{self.link}: {', '.join(names)}")
            costs[configuration] = await self._run(names, every)
        cases = []
        for name, weights in NAMED.items():
            bench.progress.stage(f"{self.link}: the planner chooses by {name}")
            cases.append(await self._judge(name, Preference(**weights), costs))
        bench.progress.advance(done)
        listed = [{"configuration": each, **asdict(cost)} for each, cost in costs.items()]
        return {"link": self.link, "costs": listed, "cases": cases}

    async def _judge(self, name: str, preference: Preference, costs: Mapping[Configuration, Cost]) -> dict[str, Any]:
        deadline = {"deadline_seconds": find_deadline(costs)} if name == "power" else {}
        limits = {"deadline": f"{deadline['deadline_seconds']} s"} if deadline else {}
        request = self._plan({"prefer": name, "steps": TRIAL_STEPS, **limits})
        decided: list[TrialDecision] = []
        tuner = _planning_of(request).make_tuner(decided.append, lambda _: None)
        await self._train(request, tuner, lambda: bool(decided))
        best = find_best(costs, preference, **deadline)
        outcome = judge_decided(costs, decided[0], preference, **deadline)
        trials = [asdict(each) for each in decided[0].plan.trials]
        case = {"preference": name, "link": self.link, **deadline, "best": best}
        return case | {"ours": outcome.row(), "trials": trials}

    async def _run(self, names: Sequence[str], every: Collection[str]) -> Cost:
        """Run a configuration for a few steps, warmed up, and return what they cost."""
        pinned = {"include": list(names), "exclude": sorted(set(every).difference(names)), "steps": 0}
        request = self._plan(pinned, rounds=2, round_steps=ORACLE_STEPS)
        tuner = _planning_of(request).make_tuner(lambda _: None, lambda _: None)
        rounds = await self._train(request, tuner, lambda: False)
        steps, records = rounds[-1].steps, sum(step.samples for step in rounds[-1].steps)
        if {part.device for step in steps for part in step.devices} != set(names):
            raise DeviceError(f"{', '.join(names)} were to train, but a drive was lost; run it again")
        joules = rounds[-1].total_joules
        return Cost(rounds[-1].array_seconds / records, joules / records, _records_of(request, names), len(steps))

    def _plan(self, planner: Mapping[str, Any], rounds: int = ROUNDS, **sync: Any) -> RunRequest:
        return _request(self.link, self.seed, planner, rounds, self.engine, **sync)

    async def _train(self, request: RunRequest, tuner: Any, over: Callable[[], bool]) -> list[RoundRecord]:
        """Train until it is over, or the job's rounds are done."""
        planned = replace(request, sync=_planning_of(request).plan)
        rounds: list[RoundRecord] = []
        async with self.drives.training(planned, guide=RunGuide(tuner, over)) as training:
            while not training.done and not over():
                rounds.append(await training.run_round())
        return rounds

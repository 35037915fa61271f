"""Choices of the planner against the truly best devices on real virtual machines, where each configuration is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import Engine, make_engine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import WATCHDOG_SECONDS, report
from csd_lab.bench.planner.bench_planner import summarise
from csd_lab.bench.planner.planner_vms_judge import Cost, all_nodes, find_best, find_deadline, judge_decided
from firmware_agent.common.errors import DeviceError
from firmware_agent.common.models import ModelSpec
from host.app.prepare import RunRequest, prepare_run
from host.app.training_run import make_participants, make_sync_training
from host.config.job_file import JobConfig
from host.config.preference import NAMED, Preference
from host.config.resolve import ResolvedRun
from host.core.records import RoundRecord
from host.fleet.lifecycle import StartedArray
from host.fleet.temporary_array import run_on_engine
from host.policies.selection.cluster import Configuration
from host.policies.selection.planner_protocol import TrialDecision
from host.training.accounting import make_accountant
from host.training.run_faults import RunFaults
from host.training.selection.planning import Planning
from host.training.sync.run_guide import RunGuide

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


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Let the planner choose on three virtual drives of two profiles, judged by running every configuration.

    Four preferences and two links. Figures: those of `csd_lab.bench.planner.bench_planner.summarise`; `cases`.
    Clock: counted.
    """
    begin = time.monotonic()
    worlds = measure(paths, progress, seed)
    rows = [row for world in worlds for row in world["cases"]]
    figures = summarise([row["ours"] for row in rows]) | {"cases": float(len(rows))}
    samples = {"devices": DEVICES, "model": MODEL, "batch_size": BATCH, "private": PRIVATE, "worlds": worlds}
    return report("planner_vms", "counted", seed, figures, samples | {"wall_seconds": time.monotonic() - begin})


def measure(
    paths: Paths, progress: Progress, seed: int, links: Sequence[str] = LINKS, engine: str = "qemu"
) -> list[dict[str, Any]]:
    """Return for each link what each configuration costs, and what was chosen by each preference."""
    first = _request(links[0], seed, {}, engine=engine)

    async def work(started: StartedArray, machines: Engine) -> list[dict[str, Any]]:
        worlds = []
        for number, link in enumerate(links):
            world = _World(started, machines, link, seed, engine)
            worlds.append(await world.judge_all(progress, number / len(links)))
        return worlds

    return run_on_engine(make_engine(first.config, paths), first.array, paths, progress, work)


def _request(
    link: str, seed: int, planner: Mapping[str, Any], rounds: int = ROUNDS, engine: str = "qemu", **sync: Any
) -> RunRequest:
    """Return a run of the bench's job with a section ``planner``."""
    array = {"name": "bench-planner-vms", "engine": engine, "link": {"bandwidth": link}, "devices": DEVICES}
    job = {
        **{"model": MODEL, "data": {"source": "digits", "private": PRIVATE}, "mode": "sync", "rounds": rounds},
        **{"batch_size": BATCH, "seed": seed, "watchdog": f"{WATCHDOG_SECONDS} s", "learning_rate": 0.1},
        **{"planner": planner, "sync": sync},
    }
    return prepare_run(ResolvedRun(ArrayConfig.model_validate(array), JobConfig.model_validate(job), ModelSpec(MODEL)))


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

    started: StartedArray
    engine: Engine
    link: str
    seed: int
    kind: str

    async def judge_all(self, progress: Progress, done: float) -> dict[str, Any]:
        """Run every configuration, let the planner choose by each preference, and judge it."""
        nodes = all_nodes(_planning_of(self._plan({})).cluster)
        every, costs = {name for names in nodes.values() for name in names}, dict[Configuration, Cost]()
        for configuration, names in nodes.items():
            progress.stage(f"{self.link}: {', '.join(names)}")
            costs[configuration] = await self._run(names, every)
        cases = []
        for name, weights in NAMED.items():
            progress.stage(f"{self.link}: the planner chooses by {name}")
            cases.append(await self._judge(name, Preference(**weights), costs))
        progress.advance(done)
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
        trials = [asdict(each) for each in decided[0].tried]
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
        return _request(self.link, self.seed, planner, rounds, self.kind, **sync)

    async def _train(self, request: RunRequest, tuner: Any, over: Callable[[], bool]) -> list[RoundRecord]:
        """Train until it is over, or the job's rounds are done."""
        plan = _planning_of(request).plan
        accountant = make_accountant(request.config, request.models)
        rounds: list[RoundRecord] = []
        async with RunFaults(self.started.fleet, plan.nodes, accountant.time, lambda *_: None) as faults:
            participants = make_participants(
                request, self.started.fleet, lambda: self.engine.list_devices(request.config.name), lambda *_: None
            )
            training = make_sync_training(
                replace(request, sync=plan), participants, accountant, faults, guide=RunGuide(tuner, over)
            )
            while not training.done and not over():
                rounds.append(await training.run_round())
        return rounds

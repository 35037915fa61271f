"""Choices of the planner against the truly best devices on real virtual machines, where each configuration is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives, array_of, request_run
from csd_lab.bench.planner.bench_planner import summarise
from csd_lab.bench.planner.planner_vms_judge import Cost, all_nodes, find_best, find_deadline, judge_decided
from firmware_agent.common.errors import DeviceError
from host.app.run_request import RunRequest
from host.config.preference import NAMED, Preference
from host.core.records import RoundRecord
from host.policies.selection.cluster import Configuration
from host.policies.selection.planner_protocol import TrialDecision
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


def run(bench: Bench) -> BenchReport:
    """Let the planner choose on three virtual drives of two profiles, judged by running every configuration.

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
            worlds.append(await world.judge_all(bench.progress, number / len(links)))
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
        return _request(self.link, self.seed, planner, rounds, self.engine, **sync)

    async def _train(self, request: RunRequest, tuner: Any, over: Callable[[], bool]) -> list[RoundRecord]:
        """Train until it is over, or the job's rounds are done."""
        planned = replace(request, sync=_planning_of(request).plan)
        rounds: list[RoundRecord] = []
        async with self.drives.training(planned, guide=RunGuide(tuner, over)) as training:
            while not training.done and not over():
                rounds.append(await training.run_round())
        return rounds

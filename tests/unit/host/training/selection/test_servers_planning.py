"""Several servers that choose which of all their drives train, on fake drives in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.allreduce import Fabric, ring
from firmware_agent.common.frames.step_frames import Step
from firmware_agent.common.slices import Array
from host.core.records import EventKind, StepRecord
from host.policies.selection.planner_protocol import TrialDecision
from host.policies.selection.planning_tuner import PlanningTuner
from host.training.multi_server.server_membership import ServersTogether
from host.training.selection.make_cluster import Exchanged, Servers, make_cluster, planner_rules
from host.training.selection.planning import Planning
from host.training.sync_plan import SyncPlan
from tests.support.examples import examples
from tests.support.fakes import Answer
from tests.support.servers import LINK, Hall, array_of
from tests.support.sync import StepDrive, SyncRun

# Of a fake model: nine float32 parameters, and a counter.
STATE_BYTES, GRADIENT_BYTES = 9 * 4 + 8, 9 * 4


class Planners:
    """Makes the tuners of all servers, and keeps what they decide, by server; the last run's of one that comes anew."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.decided: dict[int, list[TrialDecision]] = {}

    def __call__(self, plan: SyncPlan) -> PlanningTuner:
        counts: dict[str, int] = {}
        for node in plan.nodes:
            counts[node.split("-")[0]] = counts.get(node.split("-")[0], 0) + 1
        arrays = {server: array_of([(server, count)], f"array-{server}") for server, count in counts.items()}
        crossing = STATE_BYTES + (GRADIENT_BYTES if self.every > 1 else 0)  # with momentum
        window = plan.window_steps(self.every)
        between = ring(crossing, [len(arrays)], Fabric(LINK.bandwidth, LINK.latency)).seconds / window
        exchanged = Exchanged(STATE_BYTES, GRADIENT_BYTES, 64)
        cluster = make_cluster(array_of(list(counts.items())), plan, exchanged, Servers(arrays, between))
        decided = self.decided.setdefault(len(self.decided), [])
        planning = Planning(plan, cluster, planner_rules(plan, window))
        return planning.make_tuner(decided.append, lambda _: None)

    def chosen(self) -> list[Mapping[str, int]]:
        """What each server decided on last, in the order in which they were made."""
        return [each[-1].batches for each in self.decided.values() if each]


def server_group_of(planners: Planners, drives: list[int], slow: float = 1.0, **fields: Any) -> Hall:
    """Servers of which the last one's drives take `slow` times as long."""
    last = chr(ord("a") + len(drives) - 1)
    settings: dict[str, Any] = dict(records=10_000, batch_size=16, rounds=2, momentum=0.9, make_tuner=planners)
    settings |= {"planner": {"prefer": "time", "steps": 2}, "sync": {"round_steps": 12}}
    make_drive = fields.pop("make_drive", StepDrive)
    settings |= {"reduce_every": planners.every} | fields
    return Hall(drives, lambda name: make_drive(name, slow if name.startswith(last) else 1.0), **settings)


def assert_all_alike(planners: Planners, *runs: SyncRun) -> None:
    chosen = planners.chosen()
    assert len(chosen) >= len(runs)  # each server tells what was decided, also one that took it over
    assert all(each == chosen[-1] for each in chosen[-len(runs) :])
    for run in runs[1:]:
        for name, array in runs[0].training.weights.items():
            np.testing.assert_array_equal(run.training.weights[name], array)


def assert_dealt_once(first: SyncRun, *others: SyncRun) -> None:
    """All servers deal out alike: no record twice, and those of all steps; of less than an epoch."""
    dealt = [number for run in (first, *others) for drive in run.drives for part in drive.dealt for number in part]
    assert len(set(dealt)) == len(dealt) == sum(step.samples for record in first.rounds for step in record.steps)


def windows_of(steps: list[StepRecord]) -> list[list[StepRecord]]:
    """Steps up to each in which servers add up; those after the last one are left out."""
    windows, window = [], []
    for step in steps:
        window.append(step)
        if step.servers is not None and step.servers.reduce_seconds:
            windows.append(window)
            window = []
    return windows


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(
    drives=st.lists(st.integers(1, 2), min_size=2, max_size=3),
    slow=st.sampled_from([1.0, 20.0]),
    prefer=st.sampled_from(["time", "energy", "edp"]),
    every=st.sampled_from([1, 3]),
)
def test_all_servers_choose_alike_and_steps_cost_what_was_expected(
    drives: list[int], slow: float, prefer: str, every: int
) -> None:
    planners = Planners(every)
    server_group = server_group_of(planners, drives, slow, planner={"prefer": prefer, "steps": 2})
    asyncio.run(server_group.run())
    assert len(planners.chosen()) == len(drives)
    assert_all_alike(planners, *server_group.servers.values())
    first, *others = [each[-1] for each in planners.decided.values()]
    assert all((other.plan, other.step) == (first.plan, first.step) for other in others)
    expected = first.plan.chosen
    for run in server_group.servers.values():
        steps = [step for record in run.rounds for step in record.steps]
        whole = sum(planners.chosen()[0].values())
        after = windows_of([step for step in steps if step.step > first.step])
        usual = [
            sum(step.array_seconds for step in window) / every
            for window in after
            if len(window) == every and all(step.samples == whole for step in window)
        ]
        assert usual
        assert usual == pytest.approx([expected.step_seconds] * len(usual), rel=0.03)
    if slow > 1 and prefer == "time":
        assert not any(node.startswith(server_group.order[-1]) for node in planners.chosen()[0])


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_a_server_without_a_chosen_drive_has_the_weights_of_the_others(every: int) -> None:
    planners = Planners(every)
    server_group = server_group_of(planners, [2, 1], slow=20.0)
    asyncio.run(server_group.run())
    assert_all_alike(planners, *server_group.servers.values())
    steps = [step for record in server_group.servers["b"].rounds for step in record.steps]
    assert [part.device for part in steps[0].devices] == ["b-00"]
    assert not steps[-1].devices
    assert steps[-1].servers is not None
    assert steps[-1].servers.present == ["a", "b"]
    assert steps[-1].servers.reduce_seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize("every", [4, 9])
def test_a_run_of_one_window_decides_by_all_of_its_steps(every: int) -> None:
    planners = Planners(every)
    server_group = server_group_of(planners, [1, 1], rounds=1, sync={"round_steps": 4})
    asyncio.run(server_group.run())
    assert_all_alike(planners, *server_group.servers.values())
    for each in planners.decided.values():
        assert [(tried.trial.steps, len(tried.seen)) for tried in each[-1].plan.trials] == [(4, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "deaf_after"), [(1, 1), (1, 2), (1, 4), (1, 5), (1, 8), (3, 3), (3, 6), (3, 9), (3, 12)]
)
async def test_who_misses_an_outcome_goes_on_with_the_others_planning(every: int, deaf_after: int) -> None:
    planners = Planners(every)
    server_group = server_group_of(planners, [2, 1], slow=20.0, planner={"prefer": "time", "steps": 5})
    name = "reduce" if every == 1 else "average"
    add_up = getattr(ServersTogether, name)

    async def deafened(self: ServersTogether, step: int, *rest: Any) -> Any:
        if self.server == "a" and step == deaf_after:
            server_group.meeting.deaf.add("b")
        return await add_up(self, step, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServersTogether, name, deafened)
        await server_group.run()
    a, b = server_group.servers.values()
    assert any(f"goes on after step {deaf_after} of server a" in told for told in b.told(EventKind.NOTE))
    assert_all_alike(planners, a, b)
    assert_dealt_once(a, b)


def telling(step: int, event: asyncio.Event) -> type[StepDrive]:
    """Drives that set an event when they are dealt a step."""

    class Telling(StepDrive):
        def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
            if task.step == step:
                event.set()
            yield from super().step_on(task, weights)

    return Telling


@pytest.mark.slow
@pytest.mark.parametrize(("every", "step"), [(1, 1), (1, 3), (3, 1), (3, 2), (3, 4)])
async def test_planning_begins_again_with_a_server_that_comes_in_it(every: int, step: int) -> None:
    planners, come = Planners(every), asyncio.Event()
    planner = {"prefer": "time", "steps": 9}
    server_group = server_group_of(planners, [1, 1], make_drive=telling(step, come), absent=["b"], planner=planner)
    first = asyncio.create_task(server_group.go("a"))
    await come.wait()
    server_group.servers["b"] = server_group.make("b")
    await asyncio.gather(first, server_group.go("b"))
    assert_all_alike(planners, *server_group.servers.values())
    assert_dealt_once(*server_group.servers.values())
    assert planners.chosen()[0].keys() == {"a-00", "b-00"}


@pytest.mark.slow
@pytest.mark.parametrize(("every", "step"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)])
async def test_a_server_that_is_lost_in_planning_is_in_no_plan(every: int, step: int) -> None:
    planners, lost = Planners(every), asyncio.Event()
    planner = {"prefer": "time", "steps": 4}
    server_group = server_group_of(planners, [1, 1, 2], make_drive=telling(step, lost), planner=planner)
    tasks = {name: asyncio.create_task(server_group.go(name)) for name in server_group.order}
    await lost.wait()
    await server_group.lose("b", tasks.pop("b"))
    await asyncio.gather(*tasks.values())
    a, c = server_group.servers["a"], server_group.servers["c"]
    assert_all_alike(planners, a, c)
    assert planners.chosen()[-1].keys() <= {"a-00", "c-00", "c-01"}

"""Synchronous training whose devices are chosen on the way, on fake drives, with a fake planner."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import msgspec
import numpy as np
import pytest

from host.core.records import EventKind
from host.policies.selection.planner_protocol import TrialDecision
from tests.support.fakes import Cut
from tests.support.planning import Choosing, FakePlanner, cluster
from tests.support.sync import StepDrive, SyncRun

ARRAY = cluster(2, 1, host=False)


def drives() -> list[StepDrive]:
    return [StepDrive(f"csd-{number:02d}") for number in range(3)]


def took_part(run: SyncRun) -> list[list[str]]:
    return [[part.device for part in step.devices] for record in run.rounds for step in record.steps]


ALL, ONE, SLOW = (2, 1), (1, 0), (0, 1)
NODES = ["csd-00", "csd-01", "csd-02"]


async def test_a_run_tries_configurations_and_goes_on_with_the_chosen_one() -> None:
    choosing = Choosing(ARRAY, ALL, ONE)
    run = SyncRun(*drives(), records=60, make_tuner=choosing)
    await run.run()
    assert took_part(run)[:5] == [NODES] * 2 + [["csd-00"]] * 3
    assert choosing.decided[0].batches == {"csd-00": 4}
    assert sum(step.samples for step in run.rounds[0].steps) == 60
    retunes = run.rounds[0].retunes
    assert [retune.step for retune in retunes] == [3]  # the second trial's devices are the chosen ones
    assert len(run.told(EventKind.RETUNED)) == 1
    assert choosing.seen == {
        configuration: [step.array_seconds for step in run.rounds[0].steps[place : place + 2]]
        for configuration, place in ((ALL, 0), (ONE, 2))
    }


async def test_a_trials_joules_are_those_of_its_steps() -> None:
    choosing = Choosing(ARRAY, ALL)
    run = SyncRun(*drives(), records=24, make_tuner=choosing, sync={"round_steps": 2})
    await run.run()
    ((_, seen),) = choosing.planners[0].observed
    assert sum(one.joules for one in seen) == pytest.approx(run.rounds[0].total_joules, rel=1e-12)


@pytest.mark.slow
async def test_drives_that_rest_may_be_off() -> None:
    totals = []
    for off in (False, True):
        choosing = Choosing(ARRAY, ONE)
        run = SyncRun(*drives(), records=24, make_tuner=choosing)
        if off:
            run.accountant.powered_off = choosing.tuners[0].idle
        await run.run()
        totals.append(run.rounds[0].energy_joules)
    assert set(totals[0]) == {"host", "csd-01", "csd-02"}
    assert set(totals[1]) == {"host"}


@pytest.mark.slow
async def test_a_round_of_steps_has_as_many_records_whoever_takes_part() -> None:
    choosing = Choosing(ARRAY, ONE)
    run = SyncRun(*drives(), records=1000, make_tuner=choosing, rounds=3, sync={"round_steps": 5})
    await run.run()
    assert [sum(step.samples for step in record.steps) for record in run.rounds] == [60] * 3
    assert [len(record.steps) for record in run.rounds] == [15] * 3


async def test_private_records_of_devices_that_rest_are_left_out() -> None:
    choosing = Choosing(ARRAY, ONE)
    run = SyncRun(*drives(), records=30, private=[6, 6, 6], make_tuner=choosing)
    await run.run()
    seen = {device for step in took_part(run) for device in step}
    assert seen == {"csd-00"}
    assert sum(step.samples for step in run.rounds[0].steps) == 36


async def test_a_drive_that_dies_in_a_trial_is_left_out_and_the_run_goes_on() -> None:
    class Dying(StepDrive):
        def step_on(self, task: Any, weights: Any) -> Any:
            if task.step == 2:
                raise Cut
            yield from super().step_on(task, weights)

    choosing = Choosing(ARRAY, ALL, (1, 1), SLOW)
    run = SyncRun(StepDrive("csd-00"), Dying("csd-01"), StepDrive("csd-02"), make_tuner=choosing)
    await run.run()
    assert choosing.planners[0].lost == ["csd-01"]
    assert [len(seen) for _, seen in choosing.planners[0].observed] == [1, 2, 2]
    assert sum(step.samples for step in run.rounds[0].steps) == 60


@pytest.mark.slow
async def test_a_run_that_only_plans_ends_its_round_early_and_goes_on_to_the_same_weights() -> None:
    def make(choosing: Choosing, only: bool) -> SyncRun:
        pause = choosing.over if only else (lambda: False)
        return SyncRun(*drives(), records=60, make_tuner=choosing, pause=pause, rounds=3, momentum=0.9)

    whole = make(Choosing(ARRAY, ALL, ONE), False)
    await whole.run()
    choosing = Choosing(ARRAY, ALL, ONE)
    first = make(choosing, True)
    record = await first.training.run_round()
    assert len(record.steps) == 4
    assert first.training.cut_short
    state = first.training.state()
    second = make(Choosing(ARRAY, ALL, ONE), False)
    progress = msgspec.json.decode(msgspec.json.encode(state.progress))
    second.training.restore(dataclasses.replace(state, progress=progress))
    for _ in range(3):
        second.rounds.append(await second.training.run_round())
    assert not second.training.cut_short
    dealt = [sum(step.samples for step in each.steps) for each in [record, *second.rounds]]
    assert dealt == [32, 28, 60, 60]
    for name, array in whole.training.weights.items():
        assert np.array_equal(array, second.training.weights[name]), name


@pytest.mark.slow
async def test_a_cut_round_of_steps_has_the_rest_of_its_records_in_the_next_one() -> None:
    choosing = Choosing(ARRAY, ONE)
    fields: dict[str, Any] = {"records": 1000, "rounds": 3, "sync": {"round_steps": 5}}
    first = SyncRun(*drives(), make_tuner=choosing, pause=choosing.over, **fields)
    record = await first.training.run_round()
    state = first.training.state()
    second = SyncRun(*drives(), make_tuner=Choosing(ARRAY, ONE), **fields)
    second.training.restore(state)
    rest = [await second.training.run_round() for _ in range(3)]
    assert [sum(step.samples for step in each.steps) for each in [record, *rest]] == [8, 52, 60, 60]


async def test_the_loop_goes_on_while_the_planner_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thought waits for something that only the loop does: heartbeats would be it in earnest."""
    loop, beside = asyncio.get_running_loop(), []

    def wait_for_the_loop() -> None:
        beaten = threading.Event()
        loop.call_soon_threadsafe(beaten.set)
        beside.append(beaten.wait(timeout=10) and threading.current_thread() is not threading.main_thread())

    next_trial, decide = FakePlanner.next_trial, FakePlanner.decide

    def slow_trial(planner: FakePlanner) -> Any:
        wait_for_the_loop()
        return next_trial(planner)

    def slow_decide(planner: FakePlanner) -> Any:
        wait_for_the_loop()
        return decide(planner)

    monkeypatch.setattr(FakePlanner, "next_trial", slow_trial)
    monkeypatch.setattr(FakePlanner, "decide", slow_decide)
    told_by: list[threading.Thread] = []
    choosing = Choosing(ARRAY, ALL, ONE)
    choosing.decided = told = ToldBy(told_by)
    run = SyncRun(*drives(), records=60, make_tuner=choosing)
    await run.run()
    assert beside == [True] * 4  # before the first step, after two trials, and to decide
    assert len(told) == 1
    assert told_by == [threading.main_thread()]
    assert took_part(run)[:5] == [NODES] * 2 + [["csd-00"]] * 3


class ToldBy(list[TrialDecision]):
    """Decisions, and which thread told of each."""

    def __init__(self, threads: list[threading.Thread]) -> None:
        super().__init__()
        self._threads = threads

    def append(self, decided: TrialDecision) -> None:
        self._threads.append(threading.current_thread())
        super().append(decided)

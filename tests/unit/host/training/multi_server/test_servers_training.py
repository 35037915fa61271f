"""Training over several servers, on fake drives in one process: as one server with all drives, come what may."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import CheckpointError, DeviceLost
from firmware_agent.common.frames.step_frames import Step
from firmware_agent.common.slices import Array
from host.core.records import EventKind, StepRecord
from host.core.states.training_state import TrainingState, hash_weights, pack_state, unpack_state
from host.core.tuning.batch_tuner import StepCost
from host.training.sync.several_servers import ServersEnding, ServersStepResult
from host.training.sync.step_result import StepReport, StepResult, step_joules
from host.training.sync.sync_step import Stepper, Underway
from host.training.sync.sync_training import COMPARED_STEPS
from tests.support.examples import examples
from tests.support.fakes import Answer, Cut, FakeEvaluator
from tests.support.servers import Hall
from tests.support.sync import StepDrive, SyncRun, gradient


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(
    drives=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    batch=st.integers(1, 6),
    records=st.integers(5, 60),
    rule=st.sampled_from(["constant", "linear"]),
)
def test_servers_train_as_one_server_with_all_drives(drives: list[int], batch: int, records: int, rule: str) -> None:
    fields = dict(
        records=records,
        batch_size=batch,
        rounds=2,
        sync={"learning_rate_rule": rule},
        evaluator=FakeEvaluator(dtype="float64"),
    )
    server_group = Hall(drives, **fields)
    one = SyncRun(*(StepDrive(name) for name in server_group.names), own=server_group.whole, **fields)
    asyncio.run(one.run())
    asyncio.run(server_group.run())
    for server in server_group.servers.values():
        for name, array in one.training.weights.items():
            np.testing.assert_allclose(server.training.weights[name], array, rtol=1e-12)
        assert [len(r.steps) for r in server.rounds] == [len(r.steps) for r in one.rounds]
        assert [s.samples for r in server.rounds for s in r.steps] == [s.samples for r in one.rounds for s in r.steps]


def steps_of(run: SyncRun) -> list[StepRecord]:
    return [step for record in run.rounds for step in record.steps]


def by_hand(run: SyncRun, drives: Sequence[StepDrive]) -> float:
    """What every weight has come to, from what drives were dealt in the steps of these records and who counted."""
    weight = 0.0
    for step in steps_of(run):
        counted = [drive for drive in drives if drive.device in step_devices(step, drives)]
        records = [record for drive in counted for record in drive.by_step[step.step]]
        assert step.servers is not None
        assert step.servers.samples == len(records)
        weight -= step.learning_rate * gradient(np.array(records))
    return weight


def step_devices(step: StepRecord, drives: Sequence[StepDrive]) -> set[str]:
    """Who counted in a step: drives of the servers that were there to its end."""
    assert step.servers is not None
    there = step.servers.present
    return {drive.device for drive in drives if drive.device.split("-")[0] in there and step.step in drive.by_step}


def assert_equal_weights(*runs: SyncRun) -> None:
    for run in runs[1:]:
        for name, array in runs[0].training.weights.items():
            np.testing.assert_array_equal(run.training.weights[name], array)


def drives_of(server_group: Hall) -> list[StepDrive]:
    return [drive for server in server_group.servers.values() for drive in server.drives]


# Of a play that hangs; none lasts a second.
LONGEST_SECONDS = 60
FLOAT64: dict[str, Any] = {"sync": {"round_steps": 6}, "rounds": 2}


def fresh(**fields: Any) -> dict[str, Any]:
    return {"records": 50, "evaluator": FakeEvaluator(dtype="float64"), **FLOAT64} | fields


def watched(on_step: Callable[[str, int], None]) -> Callable[[str], StepDrive]:
    """Make drives that call `on_step` with their name and step."""

    class Told(StepDrive):
        def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
            on_step(self.device, task.step)
            yield from super().step_on(task, weights)

    return Told


@pytest.mark.slow
async def test_hypertune_retunes_on_all_servers_alike_and_as_one_server_would() -> None:
    fields: dict[str, Any] = {
        "records": 100_000,
        "tuner": "hypertune",
        "sync": {"round_steps": 60, "tuning": {"slow_batch": 32}, "learning_rate_rule": "constant"},
    }
    slowed = {"b-01"}

    def make(name: str) -> StepDrive:
        return StepDrive(name, 3.0 if name in slowed else 1.0)

    server_group = Hall([2, 2], make, **fields, evaluator=FakeEvaluator(dtype="float64"))
    one = SyncRun(
        *map(make, server_group.names), own=server_group.whole, **fields, evaluator=FakeEvaluator(dtype="float64")
    )
    await one.run()
    await server_group.run()
    ((alone,),) = [[record.retunes for record in one.rounds]]
    assert alone
    assert alone[0].after["b-01"] < alone[0].before["b-01"]
    for server in server_group.servers.values():
        ((together,),) = [[record.retunes for record in server.rounds]]
        assert [(r.step, r.reason, r.after) for r in together] == [(r.step, r.reason, r.after) for r in alone]
        for name, array in one.training.weights.items():
            np.testing.assert_allclose(server.training.weights[name], array, rtol=1e-12)
    assert_equal_weights(*server_group.servers.values())


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3, 6, 7])
async def test_who_goes_in_the_middle_of_a_step_takes_no_step_and_no_public_record_along(step: int) -> None:
    lost = asyncio.Event()
    server_group = Hall(
        [2, 1, 1], watched(lambda name, now: lost.set() if (name, now) == ("b-00", step) else None), **fresh()
    )
    tasks = {name: asyncio.create_task(server_group.go(name)) for name in server_group.order}
    await lost.wait()
    await server_group.lose("b", tasks.pop("b"))
    await asyncio.gather(*tasks.values())
    left, drives = [server_group.servers["a"], server_group.servers["c"]], drives_of(server_group)
    assert_equal_weights(*left)
    for run in left:
        assert [each.step for each in steps_of(run)] == list(range(1, 13))
        assert [each.servers.present for each in steps_of(run) if each.servers] == [["a", "b", "c"]] * (step - 1) + [
            ["a", "c"]
        ] * (13 - step)
        np.testing.assert_allclose(run.training.weights["w"], by_hand(run, drives), rtol=1e-12)
    # Each record once in the first epoch, whoever had it first.
    used = [
        record
        for each in steps_of(left[0])
        for drive in drives
        if drive.device in step_devices(each, drives)
        for record in drive.by_step[each.step]
    ]
    assert sorted(used[:50]) == list(range(50))


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 6, 7, 9])
async def test_one_that_comes_later_takes_over_the_state(step: int) -> None:
    come = asyncio.Event()
    server_group = Hall([1, 2], watched(lambda name, now: come.set() if now == step else None), absent=["b"], **fresh())
    first = asyncio.create_task(server_group.go("a"))
    await come.wait()
    await asyncio.gather(first, server_group.come("b"))
    a, b = server_group.servers["a"], server_group.servers["b"]
    assert [each.step for each in steps_of(a)] == list(range(1, 13))
    assert [each.step for each in steps_of(b)] == list(range(step + 1, 13))
    assert_equal_weights(a, b)
    np.testing.assert_allclose(a.training.weights["w"], by_hand(a, drives_of(server_group)), rtol=1e-12)
    assert b.told(EventKind.NOTE)[0] == f"host: goes on after step {step} of server a; this one had taken 0"
    assert [record.round for record in a.rounds] == [1, 2]
    assert b.rounds[-1].round == 2


def test_where_a_round_stood_stays_in_the_state_until_it_goes_on() -> None:
    """A checkpoint may be written between: a resumed run would take the round's steps twice."""
    training = Hall([1, 1]).servers["a"].training
    state = training.state()
    assert state.progress["in_round"] == [0, 0, 0]
    training.restore(dataclasses.replace(state, progress={**state.progress, "in_round": [4, 16, 1]}))
    assert training.state().progress["in_round"] == [4, 16, 1]


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(seed=st.integers(0, 2**32), drives=st.lists(st.integers(1, 2), min_size=2, max_size=3), epochs=st.booleans())
def test_who_misses_an_outcome_catches_up(seed: int, drives: list[int], epochs: bool) -> None:
    """In any turn, the last one too; all end with one trajectory, in which no step is missing."""
    generator = random.Random(seed)

    async def play() -> Hall:
        job: dict[str, Any] = {"sync": {}, "rounds": 2} if epochs else {}
        server_group = Hall(drives, **fresh(records=30, **job))
        settle = server_group.meeting._settle
        turns = [0]
        deaf = {generator.randrange(26) for _ in range(3)}

        def deafen() -> None:
            if server_group.meeting._asked.keys() == server_group.meeting._there and len(
                server_group.meeting._there
            ) == len(drives):
                turns[0] += 1
                if turns[0] in deaf:
                    server_group.meeting.deaf = set(
                        generator.sample(server_group.order, generator.randrange(1, len(drives)))
                    )
            settle()

        server_group.meeting._settle = deafen  # type: ignore[method-assign]
        await asyncio.wait_for(server_group.run(), LONGEST_SECONDS)
        return server_group

    server_group = asyncio.run(play())
    servers = list(server_group.servers.values())
    assert_equal_weights(*servers)
    taken = {step.step for server in servers for step in steps_of(server)}
    assert taken == set(range(1, max(taken) + 1))
    for server in servers:
        numbers = [step.step for step in steps_of(server)]
        assert numbers == sorted(set(numbers))
        assert server.training.done
        assert server.training.state().round == 2


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(
    drives=st.lists(st.integers(1, 2), min_size=2, max_size=4),
    place=st.integers(0, 3),
    step=st.integers(2, 40),
    bit=st.integers(20, 63),  # below, the next steps may round it away
    round_steps=st.sampled_from([3, 20, 40]),
)
def test_a_flipped_bit_in_one_servers_weights_is_found(
    drives: list[int], place: int, step: int, bit: int, round_steps: int
) -> None:
    flipped = "abcd"[place % len(drives)]
    done: list[int] = []

    def flip(name: str, now: int) -> None:
        if name == f"{flipped}-00" and now == step and not done:
            done.append(now)
            memory = server_group.servers[flipped].training.weights["w"].view(np.uint64)
            memory.flat[0] ^= np.uint64(1 << bit)

    fields = {"sync": {"round_steps": round_steps}, "rounds": -(-40 // round_steps)}
    server_group = Hall(drives, watched(flip), **fresh(records=500, **fields))
    asyncio.run(asyncio.wait_for(server_group.run(), LONGEST_SECONDS))
    assert done
    servers = server_group.servers
    assert_equal_weights(*servers.values())
    different = "b" if flipped == "a" and len(drives) == 2 else flipped  # of two the first one's count
    others = [name for name in servers if name != different]
    for run in servers.values():
        told = [each for each in run.told(EventKind.NOTE) if "the weights of" in each]
        assert len(told) == 1
        assert f"the weights of {different} were not those of {', '.join(others)}," in told[0]
        numbers = [each.step for each in steps_of(run)]
        assert numbers == list(range(1, len(numbers) + 1))
        found = int(told[0].split()[3])
        assert step < found <= min(step + COMPARED_STEPS, numbers[-1] + 1)


@given(st.integers(0, 7), st.integers(0, 63), st.sampled_from(["<f4", "<f8", "<i8"]))
def test_hashes_of_weights_tell_every_bit(element: int, bit: int, dtype: str) -> None:
    one = {"w": np.arange(8).astype(dtype).reshape(2, 4), "n": np.array(3)}
    other = {name: array.copy() for name, array in reversed(one.items())}
    assert hash_weights(one) == hash_weights(other)
    assert hash_weights(one) == hash_weights(one | {"w": np.asfortranarray(one["w"])})
    other["w"].reshape(-1).view(np.uint8)[element * other["w"].itemsize + bit % 32 // 8] ^= 1 << bit % 8
    assert hash_weights(one) != hash_weights(other)


async def test_private_records_stay_on_their_drives_and_each_counts_once() -> None:
    server_group = Hall([1, 2], records=20, private=[6, 4, 2], sync={"learning_rate_rule": "constant"})
    await server_group.run()
    used: Counter[tuple[str, int]] = Counter()
    for drive in drives_of(server_group):
        size = {"a-00": 6, "b-00": 4, "b-01": 2}[drive.device]
        for records in drive.by_step.values():
            used.update(("public", n - size) if n >= size else (drive.device, n) for n in records)
    private = {(name, n) for name, size in (("a-00", 6), ("b-00", 4), ("b-01", 2)) for n in range(size)}
    assert used == Counter(private | {("public", n) for n in range(20)})
    assert_equal_weights(*server_group.servers.values())


class Dying(StepDrive):
    """Its session ends in a step."""

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        if task.step == 4:
            raise Cut
        yield from super().step_on(task, weights)


@pytest.mark.slow
async def test_a_server_whose_drives_have_all_died_goes_on_with_the_others() -> None:
    server_group = Hall([1, 2], lambda name: (Dying if name.startswith("b") else StepDrive)(name), **fresh())
    await server_group.run()
    a, b = server_group.servers["a"], server_group.servers["b"]
    for run in (a, b):
        assert [step.step for step in steps_of(run)] == list(range(1, 13))
        assert all(step.servers is not None and step.servers.present == ["a", "b"] for step in steps_of(run))
    assert steps_of(b)[3].lost == ["b-00", "b-01"]
    assert all(not step.devices for step in steps_of(b)[3:])
    assert_equal_weights(a, b)
    dealt = [record for drive in a.drives for record in drive.dealt[3]]
    assert steps_of(a)[3].servers is not None
    assert steps_of(a)[3].servers.samples == len(dealt)  # type: ignore[union-attr]


async def test_nobody_anywhere_is_said_so() -> None:
    server_group = Hall([1, 1], Dying, **fresh())
    results = await asyncio.gather(*(server_group.go(name) for name in server_group.servers), return_exceptions=True)
    assert all(isinstance(result, DeviceLost) for result in results)


@pytest.mark.slow
async def test_a_steps_energy_and_seconds_are_those_of_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    costs: dict[str, list[StepCost]] = {}
    results: dict[str, list[ServersStepResult]] = {}
    end = ServersEnding.end

    async def watch(self: ServersEnding, stepper: Stepper, step: Underway, report: StepReport) -> StepResult:
        result = await end(self, stepper, step, report)
        assert isinstance(result, ServersStepResult)
        costs.setdefault(self.together.server, []).append(result.cost)
        results.setdefault(self.together.server, []).append(result)
        return result

    monkeypatch.setattr(ServersEnding, "end", watch)
    server_group = Hall([1, 3], lambda name: StepDrive(name, 2.0 if name == "b-02" else 1.0), **fresh())
    await server_group.run()
    assert costs["a"] == costs["b"]
    for number, cost in enumerate(costs["a"]):
        own = [step_joules(each[number].accounted) for each in results.values()]
        assert set(cost.joules) == {*server_group.names, HOST}
        for node, joules in cost.joules.items():
            assert joules == pytest.approx(sum(each.get(node, 0.0) for each in own), rel=1e-9)
        assert set(cost.records) <= set(server_group.names)
        assert sum(cost.records.values()) == steps_of(server_group.servers["a"])[number].servers.samples  # type: ignore[union-attr]
        seconds = {each[number].accounted.array_seconds for each in results.values()}
        assert seconds == {cost.array_seconds}
    for server in server_group.servers.values():
        (first, *_) = steps_of(server)
        assert first.servers is not None
        assert first.servers.slowest_seconds >= first.servers.own_seconds
        assert first.array_seconds == first.servers.slowest_seconds + first.servers.reduce_seconds
        assert server.rounds[-1].start_seconds + server.rounds[-1].array_seconds == pytest.approx(
            server.training.state().array_seconds
        )


@pytest.mark.slow
async def test_the_first_servers_accuracy_is_everyones() -> None:
    judges = {"a": FakeEvaluator(lambda weight: 0.25), "b": FakeEvaluator(lambda weight: 0.75)}
    server_group = Hall([1, 1], own_fields={name: {"evaluator": judge} for name, judge in judges.items()}, rounds=2)
    await server_group.run()
    for server in server_group.servers.values():
        assert [record.accuracy for record in server.rounds] == [0.25, 0.25]


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 2**32),
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64", "int64"]),
    progress=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3),
    cut=st.integers(0, 200),
)
def test_a_state_comes_back_as_it_was_and_a_damaged_one_is_refused(
    seed: int, shapes: list[list[int]], dtype: str, progress: dict[str, Any], cut: int
) -> None:
    generator = np.random.default_rng(seed)
    weights = {f"w/{n}": (9 * generator.standard_normal(shape)).astype(dtype) for n, shape in enumerate(shapes)}
    momentum = {name: np.asarray(array, order="F").T + 1 for name, array in weights.items()}
    state = TrainingState(3, 0.5, 12.25, weights, momentum, progress)
    content = pack_state(state)
    back = unpack_state(content)
    assert (back.round, back.accuracy, back.array_seconds, dict(back.progress)) == (3, 0.5, 12.25, progress)
    for ours, theirs in ((back.weights, weights), (back.strategy, momentum)):
        assert set(ours) == set(theirs)
        for name, array in theirs.items():
            assert ours[name].dtype == array.dtype
            np.testing.assert_array_equal(ours[name], array)
    with pytest.raises(CheckpointError, match=r"another server's state cannot be read .* same csd-emu"):
        unpack_state(content[: min(cut, len(content) - 1)])
    for at in (8, 12):  # of the header, which says so
        with pytest.raises(CheckpointError):
            unpack_state(content[:at] + b"\xff" + content[at + 1 :])

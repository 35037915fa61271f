"""Steps that each server takes on its own, and the mean of weights after every k of them, on fake drives."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.allreduce import Fabric, ring
from firmware_agent.common.frames.step_frames import Step
from firmware_agent.common.slices import Array
from host.config.sync_section import OptimiserSection
from host.core.records import EventKind
from host.training.host_optimiser import HostOptimiser
from host.training.multi_server.server_membership import ServersTogether
from host.training.sync.peers.local_steps import LocalResult, LocalStepper
from host.training.sync.peers.server_step import ServersStepResult
from tests.support.examples import examples
from tests.support.fakes import Answer, Cut, FakeEvaluator
from tests.support.servers import LINK, Hall
from tests.support.sync import StepDrive, SyncRun, gradient


class Curved(StepDrive):
    """Has a gradient that depends on the weights, so that it matters whose they are."""

    def gradients(self, records: Array, weights: Mapping[str, Array]) -> dict[str, Array]:
        gradients = super().gradients(records, weights)
        return {n: array + np.sin(weights[n]) if n in ("w", "b") else array for n, array in gradients.items()}


class Dying(Curved):
    """Its session ends in one of the steps."""

    def __init__(self, device: str, step: int) -> None:
        super().__init__(device)
        self._step, self.lost = step, list[int]()

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        if task.step == self._step:
            self.lost = np.frombuffer(task.records, "<u4").tolist()
            raise Cut
        yield from super().step_on(task, weights)


def drives_of(server_group: Hall, server: str) -> list[StepDrive]:
    return list(server_group.servers[server].drives)


def assert_equal_weights(*runs: SyncRun) -> None:
    first, *others = runs
    for other in others:
        for name, array in first.training.weights.items():
            np.testing.assert_array_equal(other.training.weights[name], array)


@pytest.mark.slow
@settings(max_examples=examples(6))
@given(
    drives=st.integers(1, 3),
    every=st.integers(2, 4),
    records=st.integers(5, 60),
    steps=st.sampled_from([None, 5]),
    rule=st.sampled_from(["constant", "linear"]),
)
def test_one_server_trains_as_without_windows(
    drives: int, every: int, records: int, steps: int | None, rule: str
) -> None:
    sync = {"learning_rate_rule": rule} | ({} if steps is None else {"round_steps": steps})
    fields: dict[str, Any] = dict(records=records, rounds=2, momentum=0.9, sync=sync)
    server_group = Hall([drives], reduce_every=every, **fields)
    one = SyncRun(*(StepDrive(name) for name in server_group.names), own=server_group.whole, **fields)
    asyncio.run(one.run())
    asyncio.run(server_group.run())
    server = server_group.servers["a"]
    assert_equal_weights(server, one)
    for before, after in zip(one.rounds, server.rounds, strict=True):
        assert [s.samples for s in after.steps] == [s.samples for s in before.steps]
        assert [s.learning_rate for s in after.steps] == [s.learning_rate for s in before.steps]
        assert after.array_seconds == pytest.approx(before.array_seconds, rel=1e-12)
        assert after.train_loss == pytest.approx(before.train_loss)
    assert [d.by_step for d in server.drives] == [d.by_step for d in one.drives]


def local_sgd(server_group: Hall, every: int, rate: float, momentum: float, steps: Sequence[int]) -> float:
    """What a weight comes to, by hand; a window ends after `every` steps or at one of `steps`."""
    weight, remembered, moved = 0.0, 0.0, dict.fromkeys(server_group.order, (0.0, 0.0, 0))
    begun = 0
    for step in range(1, max(steps) + 1):
        for server, (w, buffer, count) in list(moved.items()):
            own = [r for drive in drives_of(server_group, server) for r in drive.by_step.get(step, [])]
            if not own:
                continue
            if not count:
                w, buffer = weight, remembered
            buffer = momentum * buffer + gradient(np.array(own)) + math.sin(w)
            moved[server] = w - rate * buffer, buffer, count + len(own)
        if step - begun == every or step in steps:
            total = sum(count for _, _, count in moved.values())
            weight = sum(w * count for w, _, count in moved.values()) / total
            remembered = sum(buffer * count for _, buffer, count in moved.values()) / total
            moved, begun = dict.fromkeys(server_group.order, (0.0, 0.0, 0)), step
    return weight


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(
    drives=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    every=st.integers(2, 4),
    batch=st.integers(1, 6),
    records=st.integers(8, 60),
    momentum=st.sampled_from([0.0, 0.9]),
)
def test_servers_do_local_sgd(drives: list[int], every: int, batch: int, records: int, momentum: float) -> None:
    evaluator = FakeEvaluator(dtype="float64")
    fields: dict[str, Any] = dict(records=records, batch_size=batch, rounds=2, momentum=momentum, evaluator=evaluator)
    fields["sync"] = {"learning_rate_rule": "constant"}
    server_group = Hall(drives, Curved, reduce_every=every, **fields)
    asyncio.run(server_group.run())
    servers = list(server_group.servers.values())
    assert_equal_weights(*servers)
    ends = [record.steps[-1].step for record in servers[0].rounds]
    want = local_sgd(server_group, every, 0.5, momentum, ends)
    np.testing.assert_allclose(servers[0].training.weights["w"], want, rtol=1e-12)
    counts = Counter(
        r for server in server_group.order for d in drives_of(server_group, server) for part in d.dealt for r in part
    )
    assert all(counts[record] == 2 for record in range(records))


@pytest.mark.slow
@settings(max_examples=examples(5))
@given(
    drives=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    momentum=st.sampled_from([0.0, 0.9]),
    rounds=st.integers(1, 5),
)
def test_a_window_of_one_step_is_a_step_of_all_servers(drives: list[int], momentum: float, rounds: int) -> None:
    """The mean of weights that each server has stepped from equal ones is linear in the gradients."""
    fields: dict[str, Any] = dict(momentum=momentum, rounds=rounds, sync={"round_steps": 1})
    server_groups = [
        Hall(drives, Curved, reduce_every=every, evaluator=FakeEvaluator(dtype="float64"), **fields) for every in (1, 3)
    ]
    for server_group in server_groups:
        asyncio.run(server_group.run())
    each, local = (server_group.servers["a"].training.weights for server_group in server_groups)
    for name, array in each.items():
        np.testing.assert_allclose(local[name], array, rtol=1e-12)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_drive_that_is_lost_in_a_window_takes_no_public_record_along(step: int) -> None:
    server_group = Hall(
        [2, 2], lambda name: Dying(name, step if name == "b-01" else -1), reduce_every=3, records=60, batch_size=3
    )
    asyncio.run(server_group.run())
    assert_equal_weights(*server_group.servers.values())
    computed = Counter(
        r for server in server_group.order for d in drives_of(server_group, server) for part in d.dealt for r in part
    )
    assert all(computed[record] == 1 for record in range(60))
    lost = next(drive for drive in drives_of(server_group, "b") if drive.device == "b-01")
    assert isinstance(lost, Dying)
    assert lost.lost
    for run in server_group.servers.values():
        assert sum(s.samples for r in run.rounds for s in r.steps) == 60


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 5, 6])
async def test_a_server_that_is_lost_in_a_window_loses_its_window(step: int) -> None:
    lost = asyncio.Event()

    class Telling(Curved):
        def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
            if (self.device, task.step) == ("b-00", step):
                lost.set()
            yield from super().step_on(task, weights)

    server_group = Hall([2, 1, 1], Telling, reduce_every=3, records=60, batch_size=2)
    tasks = {name: asyncio.create_task(server_group.go(name)) for name in server_group.order}
    await lost.wait()
    gone = tasks.pop("b")
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    await asyncio.gather(*tasks.values())
    left = [server_group.servers["a"], server_group.servers["c"]]
    assert_equal_weights(*left)
    steps = [each for record in left[0].rounds for each in record.steps]
    assert [each.servers.present for each in steps if each.servers] == [
        ["a", "b", "c"] if each.step <= 3 else ["a", "c"] for each in steps
    ]
    counted = [r for server in "ac" for drive in drives_of(server_group, server) for part in drive.dealt for r in part]
    counted += [r for n, part in drives_of(server_group, "b")[0].by_step.items() if n <= 3 for r in part]
    assert sorted(counted) == list(range(60))
    assert sum(each.samples for each in steps) == 60


@pytest.mark.slow
@pytest.mark.parametrize("deaf_after", [3, 6])
async def test_who_misses_a_windows_outcome_takes_over_the_others_state(deaf_after: int) -> None:
    server_group = Hall([1, 1], Curved, reduce_every=3, records=60, batch_size=3, momentum=0.9)
    average = ServersTogether.average

    async def deafened(self: ServersTogether, step: int, *rest: Any) -> Any:
        if self.server == "a" and step == deaf_after:
            server_group.meeting.deaf.add("b")
        return await average(self, step, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServersTogether, "average", deafened)
        await server_group.run()
    a, b = server_group.servers.values()
    assert_equal_weights(a, b)
    assert [f"goes on after step {deaf_after} of server a" in told for told in b.told(EventKind.NOTE)] == [True]
    assert [each.step for each in a.rounds[0].steps] == list(range(1, 11))
    missing = range(deaf_after - 2, deaf_after + 1)
    assert [each.step for each in b.rounds[0].steps] == [n for n in range(1, 11) if n not in missing]


async def test_one_that_comes_takes_over_at_a_windows_beginning() -> None:
    come = asyncio.Event()

    class Telling(Curved):
        def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
            if task.step == 2:
                come.set()
            yield from super().step_on(task, weights)

    fields: dict[str, Any] = dict(records=60, batch_size=3, sync={"round_steps": 8}, optimiser_name="Adam")
    fields["sync"]["optimiser"] = {"name": fields.pop("optimiser_name")}
    server_group = Hall([1, 1], Telling, absent=["b"], reduce_every=3, **fields)
    first = asyncio.create_task(server_group.go("a"))
    await come.wait()
    server_group.servers["b"] = server_group.make("b")
    await asyncio.gather(first, server_group.go("b"))
    assert_equal_weights(*server_group.servers.values())
    present = [each.servers.present for each in server_group.servers["a"].rounds[0].steps if each.servers]
    assert present == [["a"]] * 3 + [["a", "b"]] * 5


def window_ends(steps: int, every: int, epoch_steps: int) -> list[int]:
    """0, and the steps with which windows end: `every` after the one before, or with an epoch, or with the round."""
    ends = [0]
    while ends[-1] < steps:
        epoch_end = (ends[-1] // epoch_steps + 1) * epoch_steps
        ends.append(min(ends[-1] + every, epoch_end, steps))
    return ends


@pytest.mark.slow
@settings(max_examples=examples(5))
@given(
    drives=st.lists(st.integers(1, 2), min_size=2, max_size=3),
    every=st.integers(2, 4),
    slow=st.floats(1.0, 3.0),
    steps=st.integers(2, 9),
)
def test_seconds_and_energy_of_a_window_add_up(drives: list[int], every: int, slow: float, steps: int) -> None:
    server_group = Hall(
        drives,
        lambda name: StepDrive(name, slow if name.startswith("b") else 1.0),
        reduce_every=every,
        sync={"round_steps": steps},
        momentum=0.9,
    )
    local: dict[str, list[LocalResult]] = {name: [] for name in server_group.order}
    costs: dict[str, list[float]] = {name: [] for name in server_group.order}
    finish, end_window = LocalStepper.finish, LocalStepper.end_window

    async def watched(self: LocalStepper, step: Any) -> LocalResult:
        local[self._together.server].append(await finish(self, step))
        return local[self._together.server][-1]

    async def priced(self: LocalStepper, *window: Any) -> list[ServersStepResult]:
        results = await end_window(self, *window)
        costs[self._together.server] += [result.cost.array_seconds for result in results]
        return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStepper, "finish", watched)
        patch.setattr(LocalStepper, "end_window", priced)
        asyncio.run(server_group.run())
    records = {name: run.rounds[0] for name, run in server_group.servers.items()}
    # Parameters and momentum in float32, and a counter.
    cost = ring(2 * 9 * 4 + 8, [len(drives)], Fabric(LINK.bandwidth, LINK.latency))
    for begin, end in itertools.pairwise(window_ends(steps, every, math.ceil(60 / (4 * sum(drives))))):
        own = {name: [r.accounted.array_seconds for r in local[name][begin:end]] for name in server_group.order}
        longest = max(map(sum, own.values()))
        for name, record in records.items():
            window = record.steps[begin:end]
            assert sum(s.array_seconds for s in window) == pytest.approx(longest + cost.seconds, rel=1e-12)
            assert [s.array_seconds for s in window[:-1]] == own[name][:-1]
            assert [s.servers.reduce_seconds for s in window if s.servers] == [0.0] * (end - begin - 1) + [cost.seconds]
            # The sum's part in a step is that of a whole window, also where an epoch cuts this one short.
            slowest = next(seconds for seconds in own.values() if sum(seconds) == longest)
            each = [seconds + cost.seconds / min(every, steps) for seconds in slowest]
            assert costs[name][begin:end] == pytest.approx(each, rel=1e-12)
            waited = [s.servers.waited_seconds for s in window if s.servers]
            assert waited == pytest.approx([0.0] * (end - begin - 1) + [longest - sum(own[name])], abs=1e-12)
    for name, record in records.items():
        drawn = sum(sum(part.joules.values()) for part in (result.part for result in local[name]))
        idle = sum(server_group.servers[name].accountant.idle_watts().values())
        more = record.array_seconds - sum(r.accounted.array_seconds for r in local[name])
        joules = sum(sum(part.energy_joules.values()) for part in record.devices)
        joules += sum(sum(each.values()) for each in record.energy_joules.values())
        assert joules == pytest.approx(drawn + idle * more, rel=1e-9)
        assert server_group.servers[name].accountant.array_seconds == pytest.approx(record.array_seconds)


@pytest.mark.parametrize("last", [3, 4, 5])
async def test_a_round_that_is_to_end_in_a_window_ends_with_the_mean_of_what_was_taken(last: int) -> None:
    def pause_of(server: str) -> Callable[[], bool]:
        return lambda: server_group.servers[server].training.state().progress["step"] >= last

    own_fields = {name: {"pause": pause_of(name)} for name in ("a", "b")}
    server_group = Hall([2, 1], Curved, reduce_every=3, records=60, batch_size=3, momentum=0.9, own_fields=own_fields)
    rounds = await asyncio.gather(*(run.training.run_round() for run in server_group.servers.values()))
    assert_equal_weights(*server_group.servers.values())
    dealt = [
        r
        for server in server_group.order
        for drive in drives_of(server_group, server)
        for part in drive.dealt
        for r in part
    ]
    for record in rounds:
        assert [step.step for step in record.steps] == list(range(1, last + 1))
        assert [s.step for s in record.steps if s.servers and s.servers.reduce_seconds] == sorted({3, last})
        assert sum(step.samples for step in record.steps) == len(dealt) == len(set(dealt))


@pytest.mark.slow
async def test_a_server_without_a_drive_takes_the_mean_and_adds_nothing_to_it() -> None:
    """Its optimiser has no state, and takes over that of the others."""
    fields: dict[str, Any] = dict(records=40, momentum=0.9, batch_size=4, sync={"optimiser": {"name": "Adam"}})
    server_group = Hall([2, 1], lambda name: Dying(name, 1 if name.startswith("b") else -1), reduce_every=2, **fields)
    await server_group.run()
    a, b = server_group.servers.values()
    assert_equal_weights(a, b)
    assert not drives_of(server_group, "b")[0].dealt
    assert np.any(a.training.weights["w"] != 0)
    states = [run.training.state().strategy for run in (a, b)]
    assert states[0].keys() == states[1].keys()
    assert states[0]
    for name, array in states[0].items():
        np.testing.assert_allclose(states[1][name], array, rtol=1e-6)
    assert sum(each.samples for each in b.rounds[0].steps) == 40


@pytest.mark.slow
def test_hypertune_decides_alike_on_all_servers_when_a_window_is_over() -> None:
    server_group = Hall(
        [1, 1],
        lambda name: StepDrive(name, 3.0 if name == "b-00" else 1.0),
        reduce_every=4,
        records=10_000,
        tuner="hypertune",
        sync={"round_steps": 22, "tuning": {"slow_batch": 32}, "learning_rate_rule": "constant"},
    )
    asyncio.run(server_group.run())
    a, b = server_group.servers.values()
    retunes = [[(r.step, r.after) for record in run.rounds for r in record.retunes] for run in (a, b)]
    assert retunes[0] == retunes[1]
    assert retunes[0]
    assert all(step % 4 == 1 for step, _ in retunes[0])
    assert_equal_weights(a, b)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adafactor"])
def test_a_state_after_a_step_looks_as_one_of_steps(name: str) -> None:
    weights = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    optimiser = HostOptimiser(weights, OptimiserSection(name=name), 0.1, 0.9)
    blank = optimiser.state_after_a_step()
    assert not optimiser.state()
    assert np.all(weights["w"] == 1)
    optimiser.step_all({key: np.ones_like(array) for key, array in weights.items()}, 0.1)
    assert {k: (a.shape, a.dtype) for k, a in blank.items()} == {
        k: (a.shape, a.dtype) for k, a in optimiser.state().items()
    }

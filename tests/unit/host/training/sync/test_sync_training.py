"""The loop of synchronous training, on fake drives: weights, records, devices that go and come, retunes, resumption."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import CheckpointError, ConfigurationError, DeviceFailed, DeviceLost
from firmware_agent.common.frames.session_frames import Failed, Slice, Tensors
from firmware_agent.common.frames.step_frames import Step, Stepped
from firmware_agent.common.slices import Array
from host.core.records import EventKind
from host.core.tuning.batch_tuner import Batches, Floats, Retune, StepCost
from host.policies.batching.fixed import FixedBatches
from host.training.sync_plan import SyncPlan
from tests.support.examples import examples
from tests.support.fakes import Answer, Cut
from tests.support.sync import StepDrive, SyncRun, assert_resumes, gradient


class Dying(StepDrive):
    """Ends its stream in one step, after `slices` of its slices."""

    def __init__(self, device: str, step: int, slices: int = 0) -> None:
        super().__init__(device)
        self._step, self._slices = step, slices

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        left = self._slices
        for answer in super().step_on(task, weights):
            if task.step == self._step and isinstance(answer, Slice | Stepped):
                left -= 1
                if left < 0:
                    raise Cut
            yield answer


class Failing(StepDrive):
    """Cannot do its task, ever or in some steps."""

    def __init__(self, device: str, steps: range = range(10**6)) -> None:
        super().__init__(device)
        self._steps = steps

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        if task.step in self._steps:
            self.by_step[task.step] = []
            yield Failed("Step", "no memory")
        else:
            yield from super().step_on(task, weights)


def weight_of(run: SyncRun) -> float:
    values = {*run.training.weights["w"].flat, *run.training.weights["b"].flat}
    assert len(values) == 1
    return float(values.pop())


def dealt(run: SyncRun) -> Counter[int]:
    return Counter(record for drive in run.drives for step in drive.dealt for record in step)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(
    batches=st.integers(1, 9),
    records=st.integers(1, 30),
    drives=st.integers(1, 4),
    rule=st.sampled_from(["constant", "linear", "sqrt"]),
)
def test_steps_are_those_of_one_process_that_sees_all_records(
    batches: int, records: int, drives: int, rule: str
) -> None:
    run = SyncRun(
        *(StepDrive(f"csd-0{number}") for number in range(drives)),
        records=records,
        batch_size=batches,
        rounds=2,
        sync={"learning_rate_rule": rule},
    )
    rounds = asyncio.run(run.run())
    expected = 0.0
    for step in (step for record in rounds for step in record.steps):
        together = np.concatenate([np.array(drive.by_step.get(step.step, [])) for drive in run.drives])
        expected -= step.learning_rate * gradient(together)
        assert sum(part.weight for part in step.devices) == pytest.approx(1.0, rel=1e-12)
        assert step.samples == len(together)
    assert weight_of(run) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert run.training.weights["n"] == sum(len(record.steps) for record in rounds)


async def test_every_record_is_seen_once_in_an_epoch_and_private_ones_on_their_drive() -> None:
    run = SyncRun(StepDrive("csd-00"), StepDrive("csd-01"), records=50, private=[10, 3], rounds=1)
    (record,) = await run.run()
    seen = [Counter(r for step in drive.dealt for r in step) for drive in run.drives]
    for counts, size in zip(seen, (10, 3), strict=True):
        assert all(counts[private] == 1 for private in range(size))
    public = Counter(
        r - size for counts, size in zip(seen, (10, 3), strict=True) for r in counts.elements() if r >= size
    )
    assert public == Counter(range(50))
    assert sum(part.samples for part in record.devices) == 63


@pytest.mark.parametrize("slices", [0, 1, 2])
async def test_a_device_that_dies_in_a_step_loses_no_public_record_and_slices_that_came_stay(slices: int) -> None:
    run = SyncRun(StepDrive("csd-00"), Dying("csd-01", 3, slices), StepDrive("csd-02"), records=40)
    (record,) = await run.run()
    third = record.steps[2]
    assert third.lost == ["csd-01"]
    assert third.mixed == (slices > 0)
    assert [part.device for part in third.devices] == ["csd-00", "csd-02"]
    assert sum(part.weight for part in third.devices) == pytest.approx(1.0)
    lost = set(run.drives[1].by_step[3])
    counts = dealt(run)
    assert all(counts[r] == (2 if r in lost else 1) for r in range(40))
    assert run.told(EventKind.LOST) == ["csd-01: in step 3: csd-01: the device closed the stream"]
    assert [(r.step, r.after) for r in record.retunes] == [(4, {"csd-00": 4, "csd-01": 0, "csd-02": 4})]


@pytest.mark.slow
async def test_a_task_that_fails_now_and_then_costs_a_step_and_one_that_always_does_the_device() -> None:
    run = SyncRun(StepDrive("csd-00"), Failing("csd-01", range(2, 4)), records=40)
    (record,) = await run.run()
    assert [step.lost for step in record.steps[:4]] == [[], ["csd-01"], ["csd-01"], []]
    run = SyncRun(StepDrive("csd-00"), Failing("csd-01"), records=40)
    await run.run()
    assert len(run.drives[1].dealt) == 3
    assert run.told(EventKind.NOTE) == ["csd-01: left out from now on: its task failed 3 times in a row"]
    assert set(dealt(run)) == set(range(40))


async def test_a_run_ends_with_what_its_last_device_said() -> None:
    with pytest.raises(DeviceFailed, match="no memory"):
        await SyncRun(Failing("csd-00")).run()
    with pytest.raises(DeviceLost, match="step 2: no device is left"):
        await SyncRun(Dying("csd-00", 2)).run()


async def test_a_device_that_dials_in_again_takes_part_again() -> None:
    back = StepDrive("csd-01")

    class Watching(StepDrive):
        def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
            if task.step == 4:
                run.fleet.join(back)
            yield from super().step_on(task, weights)

    run = SyncRun(Watching("csd-00"), Dying("csd-01", 2), records=60)
    (record,) = await run.run()
    assert [len(step.devices) for step in record.steps[:6]] == [2, 1, 1, 1, 2, 2]
    assert [r.step for r in record.retunes] == [3, 5]
    assert back.dealt


async def test_alone_again_the_run_waits_for_a_device_that_exists() -> None:
    back = StepDrive("csd-00")
    run = SyncRun(Dying("csd-00", 2), records=12, existing=["csd-00"])
    task = asyncio.create_task(run.run())
    await run.noted.wait()
    run.fleet.join(back)
    (record,) = await task
    assert [step.step for step in record.steps] == [1, 2, 3]
    assert run.told(EventKind.NOTE) == ["host: step 2: waits up to 30 s for csd-00"]


async def test_a_stray_tensor_or_frame_loses_its_device_alone() -> None:
    class Leaking(StepDrive):
        """Sends a private record along, as a tensor that no gradient has."""

        def tensors(self, exchange: int, arrays: Mapping[str, Array]) -> Iterator[Answer]:
            yield from super().tensors(exchange, {**arrays, "record": np.arange(64, dtype=np.uint8)})

    class Odd(StepDrive):
        def stepped(self, task: Step) -> Stepped:
            return msgspec.structs.replace(super().stepped(task), step=task.step + 1)

    run = SyncRun(StepDrive("csd-00"), Leaking("csd-01"), Odd("csd-02"), records=30)
    await run.run()
    lost = run.told(EventKind.LOST)
    assert [said.split(":")[0] for said in lost] == ["csd-01", "csd-02"]
    assert "the tensors announced are not the model's: 4 tensors in place of 3" in lost[0]
    assert "sent Stepped, which has no place in step 1" in lost[1]
    assert not any(isinstance(frame, Tensors) and frame.exchange > 1 for frame in run.drives[1].frames)


class Greedy(FixedBatches):
    """Asks for twice as much after every step, up to what the tables have."""

    def observe(self, step: int, compute_seconds: Floats, steps_left: int | None = None) -> Retune | None:
        return self.retune(np.minimum(2 * self.batches, 64), "more")


async def test_a_retune_beyond_the_room_of_the_hosts_part_is_held_up_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SyncPlan, "_make_tuner", lambda self, tables: Greedy(self.batches, tables, self.nodes))
    run = SyncRun(StepDrive("csd-00"), StepDrive("csd-01"), records=600, most_records=20, sync={"round_steps": 5})
    rounds = await run.run()
    assert [step.step for step in rounds[0].steps] == [1, 2, 3, 4, 5]
    assert [step.samples for step in rounds[0].steps] == [8, 16, 20, 20, 20]
    assert any(
        "host: a retune asked for 32 records a step, and the host's part" in told for told in run.told(EventKind.NOTE)
    )
    assert [retune.after["csd-00"] for retune in rounds[0].retunes] == [8, 10]


@pytest.mark.slow
async def test_hypertune_shrinks_the_slowed_drives_batch_and_gives_it_back() -> None:
    run = SyncRun(
        *(StepDrive(f"csd-0{number}") for number in range(3)),
        records=100_000,
        tuner="hypertune",
        rounds=2,
        sync={"round_steps": 40, "tuning": {"slow_batch": 64}},
        disturb=[{"device": "csd-01", "at_step": 10, "weight": 100, "steps": 15}],
    )
    rounds = await run.run()
    down, up = (retune for record in rounds for retune in record.retunes)
    assert 13 <= down.step <= 15
    # It is twice as slow, and is to be done when the others are, which take records over.
    assert down.after["csd-00"] == down.after["csd-02"] >= 64
    assert 0.4 * down.after["csd-00"] <= down.after["csd-01"] <= 0.5 * down.after["csd-00"]
    assert 0.95 * 192 <= sum(down.after.values()) <= 192
    assert 28 <= up.step <= 30
    assert set(up.after.values()) == {64}
    steps = {step.step: step for record in rounds for step in record.steps}
    assert steps[10].disturbed == {"csd-01": 100}
    assert not steps[25].disturbed
    assert steps[20].learning_rate == pytest.approx(0.5 * steps[20].samples / 192)
    assert any("csd-01 64 -> " in said for said in run.told(EventKind.RETUNED))


async def test_a_late_devices_gradient_is_dropped_and_its_records_come_again() -> None:
    slow = StepDrive("csd-01", slowdown=5.0)
    run = SyncRun(StepDrive("csd-00"), slow, records=24, rounds=1, batch_size=8, sync={"straggler_factor": 2.0})
    (record,) = await run.run()
    first = record.steps[0]
    assert first.late == ["csd-01"]
    assert [(part.device, part.weight) for part in first.devices] == [("csd-00", 1.0)]
    counts = dealt(run)
    assert set(counts) == set(range(24))
    assert all(counts[r] >= 2 for r in slow.by_step[1])
    late = {step.step for step in record.steps if "csd-01" in step.late}
    used = Counter(
        r
        for drive in run.drives
        for at, step in drive.by_step.items()
        for r in step
        if (drive is not slow) or at not in late
    )
    assert used == Counter(range(24))  # each once, in a gradient that counted


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["SGD", "Adam"])
async def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(optimiser: str) -> None:
    job = {
        "rounds": 4,
        "momentum": 0.9,
        "tuner": "hypertune",
        "sync": {"round_steps": 5, "optimiser": {"name": optimiser}, "tuning": {"slow_batch": 8}},
        "disturb": [{"device": "csd-01", "at_step": 4, "weight": 100, "steps": 10}],
    }
    await assert_resumes(lambda: SyncRun(StepDrive("csd-00"), StepDrive("csd-01"), records=333, **job))


async def test_what_is_no_synchronous_state_is_refused() -> None:
    run = SyncRun(StepDrive("csd-00"))
    with pytest.raises(CheckpointError, match="does not say where a synchronous run stood"):
        run.training.restore(dataclasses.replace(run.training.state(), progress={}))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"disturb": [{"device": "csd-09", "at_step": 1, "weight": 1, "steps": 1}]}, "'csd-09' is not in the array"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(job: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SyncRun(StepDrive("csd-00"), **job)


async def test_a_late_drives_private_records_do_not_keep_an_epoch_open_for_ever() -> None:
    slow = StepDrive("csd-01", slowdown=5.0)
    run = SyncRun(StepDrive("csd-00"), slow, records=12, private=[0, 20], batch_size=4, sync={"straggler_factor": 1.5})
    (record,) = await run.run()
    counted = Counter(r for step in record.steps if "csd-01" not in step.late for r in slow.by_step.get(step.step, []))
    assert all(counted[private] == 1 for private in range(20))
    assert any(step.late for step in record.steps)


async def test_an_epoch_ends_with_the_device_that_had_its_last_records() -> None:
    run = SyncRun(StepDrive("csd-00"), Dying("csd-01", 3), records=4, private=[0, 40], batch_size=4, rounds=2)
    first, second = await run.run()
    seen = Counter(r for step in first.steps for r in run.drives[0].by_step.get(step.step, []))
    assert len(first.steps) <= 3 + 1
    assert set(seen) <= set(range(4))
    assert sum(step.samples for step in second.steps) == 4


@pytest.mark.slow
async def test_a_parked_drives_private_records_are_computed_when_the_others_are_done() -> None:
    run = SyncRun(
        *(StepDrive(f"csd-0{number}") for number in range(3)),
        records=3000,
        private=[0, 200, 0],
        tuner="hypertune",
        sync={"tuning": {"slow_batch": 64}},
        disturb=[{"device": "csd-01", "at_step": 2, "weight": 10_000, "steps": 1000}],
    )
    (record,) = await run.run()
    assert 0 in [retune.after["csd-01"] for retune in record.retunes]
    with_it = [step.step for step in record.steps if "csd-01" in [part.device for part in step.devices]]
    counted = Counter(r for step in with_it for r in run.drives[1].by_step[step])
    assert all(counted[private] == 1 for private in range(200))


@pytest.mark.slow
async def test_a_recovery_is_seen_when_the_run_has_become_longer_than_it_was_planned() -> None:
    run = SyncRun(
        *(StepDrive(f"csd-0{number}") for number in range(2)),
        records=128 * 20 - 2,
        private=[1, 1],  # so that nobody takes records over, and steps have fewer
        tuner="hypertune",
        rounds=2,
        sync={"tuning": {"slow_batch": 64}},
        disturb=[{"device": "csd-01", "at_step": 4, "weight": 300, "steps": 41}],
    )
    rounds = await run.run()
    assert run.plan.steps == 40
    assert sum(len(record.steps) for record in rounds) > 50
    down, up = (retune for record in rounds for retune in record.retunes)
    assert 45 < up.step <= 49
    assert up.after == down.before


@pytest.mark.parametrize("rule", ["linear", "constant"])
async def test_a_schedule_multiplies_the_rate_of_the_rule_by_step(rule: str) -> None:
    keys: dict[str, Any] = {"sync": {"round_steps": 3, "learning_rate_rule": rule}, "rounds": 2}
    plain = SyncRun(StepDrive("csd-00"), StepDrive("csd-01"), **keys)
    scheduled = SyncRun(StepDrive("csd-00"), StepDrive("csd-01"), schedule="cosine", **keys)
    before, after = [[step for record in await run.run() for step in record.steps] for run in (plain, scheduled)]
    assert len(after) == 6
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        factor = (1 + math.cos(math.pi * number / 6)) / 2
        assert other.learning_rate == pytest.approx(one.learning_rate * factor)


async def test_a_scheduled_run_that_is_resumed_ends_as_it_would_have() -> None:
    keys: dict[str, Any] = {"sync": {"round_steps": 3}, "rounds": 4, "schedule": {"name": "step", "every": 4}}
    await assert_resumes(lambda: SyncRun(StepDrive("csd-00"), StepDrive("csd-01"), **keys))


@pytest.mark.slow
async def test_the_learning_rate_is_that_of_the_records_in_the_gradient() -> None:
    slow = StepDrive("csd-01", slowdown=5.0)
    run = SyncRun(StepDrive("csd-00"), slow, records=64, batch_size=8, sync={"straggler_factor": 2.0})
    (record,) = await run.run()
    assert record.steps[0].late == ["csd-01"]
    assert record.steps[0].learning_rate == pytest.approx(0.5 * 8 / 16)
    small = SyncRun(StepDrive("csd-00"), records=5, batch_size=8)
    (record,) = await small.run()
    assert record.steps[0].learning_rate == 0.5  # the first step is what the job's rate is of


class OtherWay(StepDrive):
    """Its gradients point against the others'."""

    def gradients(self, records: Array, weights: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name: np.negative(value) if name != "n" else value
            for name, value in super().gradients(records, weights).items()
        }


@pytest.mark.parametrize(("batch_norm", "judged"), [("device", True), ("synchronised", False)])
async def test_directions_are_judged_where_normalisation_does_not_turn_honest_gradients(
    batch_norm: str, judged: bool
) -> None:
    drives = [*(StepDrive(f"csd-{n:02d}") for n in range(3)), OtherWay("csd-03")]
    run = SyncRun(*drives, records=800, sync={"round_steps": 20, "batch_norm": batch_norm})
    await run.run()
    assert any("point against" in told for told in run.told(EventKind.REJECTED)) == judged


class Choosing(FixedBatches):
    """Is deciding who trains until a step has been dealt; a `DeviceSelector`."""

    resting: frozenset[int] = frozenset()
    is_computing = False

    def __init__(self, batches: Batches, until: int) -> None:
        super().__init__(batches)
        self._until, self._step = until, 0

    @property
    def is_deciding(self) -> bool:
        return self._step < self._until

    def begin(self) -> None: ...

    def meet(self, here: Collection[int]) -> None: ...

    def watch(self, cost: StepCost) -> None: ...

    def probes(self, step: int) -> Batches:
        self._step = step
        return super().probes(step)

    def telling_later(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.parametrize(
    ("batch_size", "private", "deciding", "seen"),
    [
        (4, None, 0, [1, 3, 5]),
        (4, None, 3, [5]),
        (16, None, 0, [1, 2, 3]),
        (4, [12, 6], 0, [1, 2, 4, 5, 7, 8]),
    ],
    ids=["without an epoch's last step", "not of a trial", "all, if they are alike", "parts unlike the batches"],
)
async def test_a_transfer_tuner_is_told_of_steps_that_can_be_compared(
    batch_size: int, private: list[int] | None, deciding: int, seen: list[int]
) -> None:
    run = SyncRun(
        *(StepDrive("csd-00"), StepDrive("csd-01")),
        records=10 if private is None else 0,
        private=private,
        epochs=3,
        batch_size=batch_size,
        make_tuner=lambda plan: Choosing(np.array(plan.batches), deciding),
    )
    told: list[int] = []

    async def learn(step: int, *_: object) -> None:
        told.append(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.transfers, "learn", learn)
        await run.run()
    assert told == seen


@pytest.mark.parametrize(("drives", "known"), [(3, True), (2, False)])
async def test_a_round_says_how_noisy_the_gradients_of_three_drives_are(drives: int, known: bool) -> None:
    run = SyncRun(*map(StepDrive, ("csd-00", "csd-01", "csd-02")[:drives]), records=600, sync={"round_steps": 20})
    (record,) = await run.run()
    noise = record.gradient_noise_records
    assert (noise is not None) == known
    assert noise is None or noise >= 0

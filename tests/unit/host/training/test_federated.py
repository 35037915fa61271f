import asyncio
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.profiles import get_profile
from firmware_agent.common.errors import CheckpointError, DeviceCodeFailed, DeviceFailed, DeviceLost
from firmware_agent.common.frames.frame_fields import PhaseSeconds, TensorSpec
from firmware_agent.common.frames.session_frames import Failed, Job, Slice, Tensors, Train, Trained
from firmware_agent.common.slices import Array, make_slice
from firmware_agent.common.wire import encode, unpack
from host.config.job_file import JobConfig
from host.config.participation import ParticipationSection, choose_devices
from host.core.evaluation import Evaluator, Structure
from host.core.failures import Failures
from host.core.records import EventKind, EventRecord, RoundRecord
from host.fleet.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from host.fleet.fleet import Fleet
from host.training.accounting import make_accountant
from host.training.federated import FederatedTraining
from host.training.round_exchange import RoundExchange
from tests.support.fakes import JOB, SECONDS, Answer, Cut, FakeDrive, FakeEvaluator, FakeFleet

TRACEBACK = 'Traceback (most recent call last):\n  File "nets.py", line 3, in forward\nRuntimeError: my bug'
Records = list[RoundRecord | EventRecord]


class Run:
    """A training on fakes, and what it told; devices that are in `existing` may come back."""

    def __init__(
        self,
        *drives: FakeDrive,
        evaluator: FakeEvaluator | None = None,
        names: list[str] | None = None,
        existing: Collection[str] = (),
        goes_on: bool = True,
        **job: Any,
    ) -> None:
        fields: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 2, "watchdog": "30 s"}
        self.records: Records = []
        self.existing = set(existing)
        order = names or [drive.device for drive in drives]
        self.fleet, self.evaluator = FakeFleet(*drives), evaluator or FakeEvaluator()
        config = JobConfig.model_validate(fields | job)
        array = {"name": "fakes", "devices": [{"profile": "newport", "count": len(order)}]}
        self.accountant = make_accountant(ArrayConfig.model_validate(array), {})
        self.failures = Failures(goes_on)
        exchange = RoundExchange(
            config, JOB, cast(Fleet, self.fleet), lambda: self.existing, self.on_event, failures=self.failures
        )
        self.exchange = exchange
        judge = cast(Evaluator, self.evaluator)
        self.training = FederatedTraining(config, order, exchange, self.accountant, judge)

    def on_event(self, device: str, what: EventKind, detail: str) -> None:
        self.records.append(EventRecord(device, what, detail))

    async def run(self) -> list[RoundRecord]:
        rounds = []
        while not self.training.done:
            rounds.append(await self.training.run_round())
            self.records.append(rounds[-1])
        return rounds

    @property
    def weights(self) -> Mapping[str, Array]:
        return self.training.weights


class FrozenEvaluator(FakeEvaluator):
    def structure(self) -> Structure:
        return Structure(("w",), ("n",), {})


def training(*drives: FakeDrive, **job: Any) -> tuple[Run, Records]:
    run = Run(*drives, **job)
    return run, run.records


def events(records: Records) -> list[str]:
    return [
        f"{record.device}: {record.what} {record.detail}".rstrip()
        for record in records
        if isinstance(record, EventRecord)
    ]


def first_weight(training: Run) -> float:
    values = set(training.weights["w"].flat) | set(training.weights["b"].flat)
    assert len(values) == 1
    return float(values.pop())


async def test_weights_move_by_the_mean_of_the_drives_weighted_by_samples() -> None:
    drives = FakeDrive("csd-00", samples=10, step=1.0), FakeDrive("csd-01", samples=30, step=5.0)
    run, records = training(*drives, rounds=3)
    rounds = await run.run()
    assert records == rounds
    assert first_weight(run) == pytest.approx(3 * 4.0)
    assert run.weights["n"] == 12
    assert run.weights["n"].dtype == np.int64
    assert [record.round for record in rounds] == [1, 2, 3]
    for drive in drives:
        assert sum(isinstance(frame, Job) for frame in drive.frames) == 1  # the model is built once


async def test_frozen_weights_stay_to_the_bit_whatever_comes_back() -> None:
    drives = FakeDrive("csd-00", samples=10, step=1.0), FakeDrive("csd-01", samples=30, step=5.0)
    run, _ = training(*drives, rounds=3, freeze=["b"], evaluator=FrozenEvaluator())
    await run.run()
    assert not run.weights["b"].any()
    assert set(run.weights["w"].flat) == {12.0}
    assert run.weights["n"] == 12


async def test_a_rounds_learning_rate_goes_with_its_task() -> None:
    for rate, told in ((lambda number: 0.5**number, [0.5, 0.25, 0.125]), (lambda _: None, [None] * 3)):
        drive = FakeDrive("csd-00")
        run, _ = training(drive, rounds=3)
        run.exchange.learning_rate = rate
        await run.run()
        assert [frame.learning_rate for frame in drive.frames if isinstance(frame, Train)] == told


async def test_weights_cross_in_the_jobs_precision() -> None:
    run, _ = training(FakeDrive("csd-00"), precision="float64", rounds=1)
    assert run.weights["w"].dtype == np.float64
    await run.run()
    assert {array.dtype for array in run.weights.values()} == {np.dtype("f8"), np.dtype("i8")}


async def test_what_a_round_records() -> None:
    drives = FakeDrive("csd-00", samples=10), FakeDrive("csd-01", samples=30, clock="counted")
    run, _ = training(*drives, rounds=1, evaluator=FakeEvaluator(lambda weight: 0.5))
    (record,) = await run.run()
    scaled = get_profile("newport").device_seconds(SECONDS)
    assert [part.device for part in record.devices] == ["csd-00", "csd-01"]
    assert [part.device_seconds for part in record.devices] == [SECONDS, scaled]  # only counted seconds are scaled
    assert [part.stopwatch_seconds for part in record.devices] == [SECONDS, SECONDS]
    assert record.clock == "counted+wall"
    assert (record.accuracy, record.test_loss, record.train_loss) == (0.5, 0.25, 0.5)
    assert record.slowest_device_seconds == SECONDS.total
    assert record.records_per_device_second == pytest.approx(40 / (SECONDS.total + scaled.total))
    assert record.lost == []
    for drive, part in zip(drives, record.devices, strict=True):
        assert part.sent_bytes == sum(map(len, drive.written[1:]))  # without the job
        assert part.received_bytes == sum(map(len, drive.sent[1:]))
        assert (part.flash_read_bytes, part.steps, part.loss) == (640, math.ceil(drive.samples / 32), 0.5)


async def test_it_ends_when_the_target_is_reached() -> None:
    evaluator = FakeEvaluator(lambda weight: weight / 10)
    run, _ = training(FakeDrive(), rounds=9, target={"accuracy": 0.3}, evaluator=evaluator)
    assert [record.accuracy for record in await run.run()] == pytest.approx([0.1, 0.2, 0.3])


async def test_the_sum_runs_in_the_arrays_order_whoever_answers_first() -> None:
    class Late(FakeDrive):
        async def write(self, message: bytes) -> None:
            for _ in range(50):
                await asyncio.sleep(0)
            await super().write(message)

    results = []
    for first, second in ((FakeDrive, Late), (Late, FakeDrive)):
        run, _ = training(first("csd-00", 7, 0.1), second("csd-01", 13, 0.7), FakeDrive("csd-02", 29, 0.9), rounds=3)
        rounds = await run.run()
        results.append({name: array.tobytes() for name, array in run.weights.items()})
        assert [part.device for part in rounds[-1].devices] == ["csd-00", "csd-01", "csd-02"]
    assert results[0] == results[1]


class InRound(FakeDrive):
    """A drive that misbehaves in one round."""

    bad_round = 2

    def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        if task.round == self.bad_round:
            yield from self.misbehave(task, weights)
        else:
            yield from super().train(task, weights)

    def misbehave(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        raise NotImplementedError


class CutOff(InRound):
    def misbehave(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        yield from list(self.tensors(task.round, weights))[:2]
        raise Cut


class WrongTensors(InRound):
    def misbehave(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        yield Tensors(task.round, [TensorSpec("w", "<f4", (3, 2))])


class Poison(InRound):
    def misbehave(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        yield make_slice(task.round, "w", 0, b"1234")


class OldRound(InRound):
    def misbehave(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        yield from super().train(Train(1, 1), weights)


class Garbage(InRound):
    def misbehave(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        yield b"\xc1"


class Fails(InRound):
    def misbehave(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        yield Failed("Train", "no memory")


class Silent(InRound):
    def misbehave(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        return iter(())


class TakesNothing(InRound):
    """Frozen: its transport's buffers are full, so nothing can be sent to it."""

    async def write(self, message: bytes) -> None:
        if any(isinstance(frame, Tensors) and frame.exchange == self.bad_round for frame in unpack(message)):
            await asyncio.Event().wait()
        await super().write(message)


class BitFlip(InRound):
    def misbehave(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        for frame in FakeDrive.train(self, task, weights):
            if isinstance(frame, Slice) and frame.tensor == "b":
                frame = msgspec.structs.replace(frame, data=memoryview(bytes(frame.data[:-1]) + b"\xff"))
            yield frame


@pytest.mark.parametrize(
    ("kind", "cause", "job"),
    [
        (BitFlip, "b+0: 12 bytes do not match their checksum", {}),
        (CutOff, "the device closed the stream", {}),
        (WrongTensors, "not the model's", {}),
        (Poison, "sent Slice where Tensors was due", {}),
        (OldRound, "exchange 1 came in during exchange 2", {}),
        (Garbage, "malformed frame", {}),
        (Fails, "no memory", {}),
        (Silent, "silent", {"watchdog": "50 ms"}),
        (TakesNothing, "silent", {"watchdog": "50 ms"}),
    ],
)
async def test_a_round_goes_on_without_a_drive_that_misbehaves(
    kind: type[InRound], cause: str, job: dict[str, Any]
) -> None:
    drives = kind("csd-00", samples=100, step=50.0), FakeDrive("csd-01", samples=10, step=1.0)
    run, records = training(*drives, rounds=3, **job)
    rounds = await run.run()
    assert [record.lost for record in rounds][:2] == [[], ["csd-00"]]
    assert [part.device for part in rounds[1].devices] == ["csd-01"]
    assert any(text.startswith("csd-00: ") and "round 2" in text and cause in text for text in events(records))
    assert records.index(next(r for r in records if isinstance(r, EventRecord))) < records.index(rounds[1])
    # Nothing of what it sent in round 2 is in the weights.
    after_one = (100 * 50 + 10 * 1) / 110
    assert run.evaluator.seen[1]["w"].flat[0] == pytest.approx(after_one + 1.0)


async def test_a_round_without_training_returns_what_was_sent_and_counts_all_drives_the_same() -> None:
    class Echo(FakeDrive):
        def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
            assert task.epochs == 0
            yield from self.tensors(task.round, weights)
            yield Trained(task.round, 0, 0, 0.0, PhaseSeconds(), 0)

    run, _ = training(*(Echo(f"csd-0{n}") for n in range(3)))
    for part in (run.training, run.training._exchange):
        part._job = part._job.model_copy(update={"epochs": 0})
    run.training._weights = {
        "w": np.float32([[1, 2, 3], [4, 5, 6]]),
        "b": np.float32([0.1, 0.2, 0.3]),
        "n": np.int64(7),
    }
    before = {name: array.tobytes() for name, array in run.weights.items()}
    record = await run.training.run_round()
    assert {name: array.tobytes() for name, array in run.weights.items()} == before
    assert (record.train_loss, record.records_per_device_second, record.lost) == (0.0, 0.0, [])


async def test_a_drive_that_was_never_there_is_recorded_as_lost() -> None:
    run, _ = training(FakeDrive("csd-01"), names=["csd-00", "csd-01"], rounds=1)
    (record,) = await run.run()
    assert record.lost == ["csd-00"]


async def test_a_drive_that_dials_in_between_rounds_builds_the_model_and_takes_part() -> None:
    run, _ = training(FakeDrive("csd-00"), names=["csd-00", "csd-01"], rounds=2)
    late = FakeDrive("csd-01")
    one = await run.training.run_round()
    run.fleet.join(late)
    two = await run.training.run_round()
    assert (one.lost, two.lost) == (["csd-01"], [])
    assert isinstance(late.frames[0], Job)


async def test_no_drive_left_ends_the_run() -> None:
    run, records = training(CutOff("csd-00"), rounds=3)
    with pytest.raises(DeviceLost, match="round 2: no device returned its weights"):
        await run.run()
    assert [record.round for record in records if isinstance(record, RoundRecord)] == [1]


async def test_a_job_that_fails_in_every_drive_tells_the_cause() -> None:
    class CannotBuild(FakeDrive):
        def prepare(self, job: Job) -> Iterator[Answer]:
            yield Failed("Job", "model 'net.py:build': cannot be imported")

    run, _ = training(CannotBuild("csd-00"), CannotBuild("csd-01"))
    with pytest.raises(DeviceFailed, match=r"csd-0.*net\.py:build"):
        await run.run()


class RaisesInTheModel(FakeDrive):
    """Its model raises in every round."""

    def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        yield Failed("Train", "RuntimeError: my bug", "RuntimeError", TRACEBACK, True)


async def test_a_model_that_raises_ends_the_round_at_once_and_nobody_is_waited_for() -> None:
    class Silent(FakeDrive):
        def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
            return iter(())

    run, records = training(Silent("csd-00"), RaisesInTheModel("csd-01"), goes_on=False, watchdog="10 h")
    with pytest.raises(DeviceCodeFailed, match="my bug") as found:
        await run.run()
    assert (found.value.code, found.value.traceback) == ("model", TRACEBACK)
    (failure,) = run.failures.list()
    assert (failure.device, failure.count, failure.error) == ("csd-01", 1, "RuntimeError: my bug")
    assert [record for record in records if isinstance(record, RoundRecord)] == []
    assert not [task for task in asyncio.all_tasks() if "_visit" in repr(task)]  # nobody is asked in the background


async def test_a_run_that_shall_go_on_does_without_the_drive_whose_model_raises() -> None:
    run, _ = training(FakeDrive("csd-00"), RaisesInTheModel("csd-01"), rounds=3)
    records = await run.run()
    assert [record.lost for record in records] == [["csd-01"]] * 3
    assert [failure.count for failure in run.failures.list()] == [3]


async def test_a_drive_that_dies_is_no_failure_of_the_users_code() -> None:
    run, _ = training(CutOff("csd-00"), FakeDrive("csd-01"), rounds=3, goes_on=False)
    records = await run.run()
    assert [record.lost for record in records][-1] == ["csd-00"]
    assert run.failures.list() == []


async def test_a_drive_that_counted_no_time_at_all_is_refused_and_its_clock_named() -> None:
    class Timeless(FakeDrive):
        def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
            yield from self.tensors(task.round, weights)
            yield self.trained(task, PhaseSeconds())

    run, _ = training(Timeless("csd-00"), FakeDrive("csd-01"), rounds=1)
    (record,) = await run.run()
    assert record.lost == ["csd-00"]
    assert any(text.startswith("csd-00: rejected") and "its clock stands still" in text for text in events(run.records))
    run, _ = training(Timeless("csd-00"), rounds=1)
    with pytest.raises(DeviceLost, match="its clock stands still"):
        await run.run()


async def test_a_drive_that_leaves_right_after_its_weights_still_counts_with_its_clock() -> None:
    class Leaves(FakeDrive):
        def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
            yield from super().train(task, weights)
            raise Cut

    run, _ = training(Leaves(clock="counted"), rounds=1)
    (record,) = await run.run()
    assert (record.clock, record.lost) == ("counted", [])


class Gone(FakeDrive):
    """Its stream ends when it is asked to train."""

    def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        raise Cut


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the fakes give no event for it
            await asyncio.sleep(0.001)


async def test_the_only_drive_that_is_just_redialling_costs_no_round() -> None:
    run, records = training(Gone("csd-00"), rounds=2, existing=["csd-00"])
    task = asyncio.ensure_future(run.run())
    await until(lambda: any("waits up to 30 s for csd-00" in text for text in events(records)))
    run.fleet.join(FakeDrive("csd-00"))
    rounds = await task
    assert [(record.round, record.lost) for record in rounds] == [(1, []), (2, [])]
    assert first_weight(run) == 2.0


async def test_waiting_for_drives_that_exist_ends_with_the_watchdog() -> None:
    run, _ = training(Gone("csd-00"), existing=["csd-00"], watchdog="50 ms")
    with pytest.raises(DeviceLost, match="round 1: no device returned"):
        await run.run()


async def test_waiting_ends_when_the_last_drive_ceases_to_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.training.round_exchange._LOOK_SECONDS", 0.01)
    run, records = training(Gone("csd-00"), existing=["csd-00"], watchdog="1 h")
    task = asyncio.ensure_future(run.run())
    await until(lambda: len(events(records)) == 2)
    run.existing.clear()
    with pytest.raises(DeviceLost):
        await asyncio.wait_for(task, 20)


async def test_a_drive_that_comes_back_and_is_lost_again_is_waited_for_again() -> None:
    run, records = training(Gone("csd-00"), rounds=1, existing=["csd-00"])
    task = asyncio.ensure_future(run.run())
    for number in range(1, 3):
        await until(lambda number=number: sum("lost" in text for text in events(records)) == number)  # type: ignore[misc]
        run.fleet.join(Gone("csd-00") if number < 2 else FakeDrive("csd-00"))
    (record,) = await task
    assert record.lost == []


async def test_a_drive_that_is_lost_whenever_it_is_asked_is_not_asked_for_ever() -> None:
    run, records = training(Gone("csd-00"), existing=["csd-00"], watchdog="1 h")
    task = asyncio.ensure_future(run.run())
    while not task.done():
        run.fleet.join(Gone("csd-00"))
        for _ in range(100):
            await asyncio.sleep(0)
    with pytest.raises(DeviceLost, match=r"no device returned its weights \(csd-00: the device closed the stream\)"):
        task.result()
    assert sum(" lost " in text for text in events(records)) == 3


async def test_a_frozen_drive_that_thaws_takes_part_again_and_its_old_answer_is_never_read() -> None:
    class Frozen(FakeDrive):
        """Takes the task of round 1, and answers it when it is thawed, into a stream that has ended."""

        def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
            self.late = list(super().train(task, weights))
            return iter(())

        async def thaw(self) -> None:
            for frame in self.late:
                await self._outbox.put(frame if isinstance(frame, bytes) else encode(frame))

    frozen = Frozen("csd-00", step=50.0)
    run, _ = training(frozen, FakeDrive("csd-01", step=1.0), rounds=3, watchdog="50 ms")
    one = await run.training.run_round()
    await frozen.thaw()
    run.fleet.join(FakeDrive("csd-00", step=1.0))
    two, three = await run.training.run_round(), await run.training.run_round()
    assert [record.lost for record in (one, two, three)] == [["csd-00"], [], []]
    assert first_weight(run) == 3.0


DEVICES = [f"csd-{number:02d}" for number in range(5)]


async def test_only_the_chosen_take_part_and_the_others_are_idle() -> None:
    drives = [FakeDrive(device) for device in DEVICES]
    run, _ = training(*drives, rounds=4, participation={"count": 2})
    rounds = await run.run()
    for record in rounds:
        choice = choose_devices(DEVICES, ParticipationSection(count=2), 0, record.round)
        assert [part.device for part in record.devices] == list(choice.chosen)
        assert record.idle == [device for device in DEVICES if device not in choice.chosen]
        assert record.lost == []
    assert first_weight(run) == 4.0
    for drive in drives:
        rounds_asked = [frame.round for frame in drive.frames if isinstance(frame, Train)]
        assert rounds_asked == [r.round for r in rounds if drive.device not in r.idle]


async def test_a_drive_that_is_gone_is_lost_if_it_was_chosen_and_idle_if_not() -> None:
    choices = [choose_devices(DEVICES, ParticipationSection(count=2), 0, number) for number in range(1, 7)]
    gone = choices[0].chosen[0]
    assert any(gone not in choice.chosen for choice in choices)
    run, _ = training(*(FakeDrive(d) for d in DEVICES if d != gone), names=DEVICES, rounds=6, participation=0.4)
    for record, choice in zip(await run.run(), choices, strict=True):
        if gone in choice.chosen:
            assert (record.lost, gone in record.idle) == ([gone], False)
        else:
            assert (record.lost, gone in record.idle) == ([], True)


async def test_others_stand_in_if_none_of_the_chosen_can_be_had() -> None:
    choice = choose_devices(DEVICES, ParticipationSection(count=1), 0, 1)
    (gone,), stand_in = choice.chosen, choice.reserves[0]
    run, records = training(
        *(FakeDrive(d) for d in DEVICES if d != gone), names=DEVICES, rounds=1, participation={"count": 1}
    )
    (record,) = await run.run()
    assert [part.device for part in record.devices] == [stand_in]
    assert (record.lost, record.idle) == ([gone], [d for d in DEVICES if d not in (gone, stand_in)])
    assert f"host: note round 1: {gone} cannot be had; {stand_in} stand in" in events(records)


class Slow(FakeDrive):
    """Needs ten times the seconds in round 2."""

    def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
        *tensors, _ = super().train(task, weights)
        factor = 10.0 if task.round == 2 else 1.0
        yield from tensors
        yield self.trained(task, PhaseSeconds(forward=factor))


async def test_a_straggler_is_left_out_and_the_round_ends_at_the_deadline() -> None:
    drives = Slow("csd-00", step=50.0), FakeDrive("csd-01", step=1.0)
    run, records = training(*drives, rounds=3, straggler={"deadline": "5 s"})
    one, two, three = await run.run()
    assert [[part.straggler for part in record.devices] for record in (one, two, three)] == [
        [False, False],
        [True, False],
        [False, False],
    ]
    assert two.array_seconds == 5.0
    assert one.array_seconds < 5.0
    assert three.start_seconds == one.array_seconds + 5.0
    assert two.lost == []
    assert [text for text in events(records) if "straggler" in text and "round 2" in text and "deadline is 5 s" in text]
    assert run.evaluator.seen[1]["w"].flat[0] == pytest.approx(51 / 2 + 1.0)


async def test_if_every_drive_misses_the_deadline_the_weights_stay_and_training_goes_on() -> None:
    run, records = training(Slow("csd-00"), Slow("csd-01"), rounds=3, straggler={"deadline": "5 s"})
    rounds = await run.run()
    assert [float(weights["w"].flat[0]) for weights in run.evaluator.seen] == [1.0, 1.0, 2.0]
    assert rounds[1].array_seconds == 5.0
    assert "host: note round 2: every device was late, the deadline is 5 s; the weights stay" in events(records)


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fednova", "fedadam"])
async def test_a_training_that_is_restored_goes_on_to_the_bit(strategy: str, tmp_path: Path) -> None:
    def drives() -> list[FakeDrive]:
        return [FakeDrive("csd-00", 10, 0.1), FakeDrive("csd-01", 30, 0.7), FakeDrive("csd-02", 7, -1.3)]

    job: dict[str, Any] = {"rounds": 6, "strategy": strategy, "participation": 0.5}
    whole, _ = training(*drives(), **job)
    rounds = await whole.run()
    first, _ = training(*drives(), **job)
    for _ in range(3):
        await first.training.run_round()
    second, _ = training(*drives(), **job)
    save_checkpoint(tmp_path / "c", Checkpoint(first.training.state(), 0.0), "job")
    checkpoint = load_checkpoint(tmp_path / "c", "job")
    assert checkpoint is not None
    second.training.restore(checkpoint.state)
    assert list(second.weights) == list(whole.weights)  # drives refuse another order
    later = await second.run()
    assert [record.round for record in later] == [4, 5, 6]
    for name, array in whole.weights.items():
        assert array.tobytes() == second.weights[name].tobytes()
    for want, got in zip(rounds[3:], later, strict=True):
        assert msgspec.structs.replace(want, wall_seconds=0.0) == msgspec.structs.replace(got, wall_seconds=0.0)


@pytest.mark.parametrize(
    "change", [{"w": np.zeros((3, 2), np.float32)}, {"w": np.zeros((2, 3))}, {"extra": np.zeros(1)}, {"b": None}]
)
async def test_weights_of_another_model_are_refused_and_change_nothing(change: dict[str, Any]) -> None:
    run, _ = training(FakeDrive(), rounds=2)
    state = run.training.state()
    weights = {name: array for name, array in (dict(state.weights) | change).items() if array is not None}
    with pytest.raises(CheckpointError, match="not those of the model"):
        run.training.restore(dataclasses.replace(state, round=1, weights=weights))
    assert run.training.state() == state


async def test_a_run_that_goes_on_needs_the_records_in_place_that_it_knew() -> None:
    run, _ = training(FakeDrive(), rounds=2)
    run.training.in_place = {"csd-00": "a" * 64}
    state = run.training.state()
    run.training.restore(state)
    run.training.in_place = {"csd-00": "b" * 64}
    with pytest.raises(CheckpointError, match="csd-00: other records lie there in place than this run trained on"):
        run.training.restore(state)
    run.training.restore(dataclasses.replace(state, progress={}))  # as an older run wrote it


async def test_records_in_place_stay_known_while_their_drive_is_away() -> None:
    run, _ = training(FakeDrive(), rounds=2)
    run.training.in_place = {"csd-00": "a" * 64, "csd-01": "c" * 64}
    state = run.training.state()
    away, _ = training(FakeDrive(), rounds=2)
    away.training.in_place = {"csd-00": "", "csd-01": "c" * 64}
    away.training.restore(state)
    assert away.training.state().progress["in_place"] == state.progress["in_place"]


async def test_a_strategy_moves_parameters_and_averages_what_is_no_parameter() -> None:
    """FedAdam's step is bounded by its learning rate; the counter n follows the mean."""
    run, _ = training(FakeDrive(step=100.0), rounds=1, strategy={"name": "fedadam", "learning_rate": 0.5})
    await run.run()
    assert 0 < first_weight(run) <= 0.5
    assert run.weights["n"] == 100

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import pytest

from csd_emu.array import ArrayConfig
from csd_emu.profiles import get_profile
from firmware_agent.errors import DeviceFailed, DeviceLost
from firmware_agent.exchange import Array
from firmware_agent.wire import Failed, Job, PhaseSeconds, Slice, Tensors, TensorSpec, Train, decode
from host.accounting import make_accountant
from host.evaluation import Evaluator
from host.federated import FederatedTraining
from host.fleet import Fleet
from host.job import JobConfig
from host.records import EventRecord, RoundRecord, What
from tests.fakes import JOB, SECONDS, Answer, Cut, FakeDrive, FakeEvaluator, FakeFleet

Records = list[RoundRecord | EventRecord]


def training(
    *drives: FakeDrive, evaluator: FakeEvaluator | None = None, names: list[str] | None = None, **job: Any
) -> tuple[FederatedTraining, Records]:
    fields: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 2, "watchdog": "30 s"}
    records: Records = []
    order = names or [drive.device for drive in drives]
    fleet, judge = cast(Fleet, FakeFleet(*drives)), cast(Evaluator, evaluator or FakeEvaluator())
    config = JobConfig.model_validate(fields | job)

    def on_event(device: str, what: What, detail: str) -> None:
        records.append(EventRecord(device, what, detail))

    array = {"name": "fakes", "devices": [{"profile": "newport", "count": len(order)}]}
    accountant = make_accountant(ArrayConfig.model_validate(array))
    return FederatedTraining(config, JOB, fleet, order, accountant, judge, records.append, on_event), records


def events(records: Records) -> list[str]:
    return [
        f"{record.device}: {record.what} {record.detail}".rstrip()
        for record in records
        if isinstance(record, EventRecord)
    ]


def first_weight(training: FederatedTraining) -> float:
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
    assert record.images_per_device_second == pytest.approx(40 / (SECONDS.total + scaled.total))
    assert record.lost == []
    for drive, part in zip(drives, record.devices, strict=True):
        assert part.sent_bytes == sum(map(len, drive.written[1:]))  # without the job
        assert part.received_bytes == sum(map(len, drive.sent[1:]))
        assert (part.flash_read_bytes, part.steps, part.loss) == (640, 2, 0.5)


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
        run, _ = training(first("csd-00", 7, 0.1), second("csd-01", 13, 0.7), FakeDrive("csd-02", 29, 1.3), rounds=3)
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
        yield Slice(task.round, "w", 0, b"1234")


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
        if isinstance(frame := decode(message), Tensors) and frame.exchange == self.bad_round:
            await asyncio.Event().wait()
        await super().write(message)


@pytest.mark.parametrize(
    ("kind", "cause", "job"),
    [
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
    assert run._evaluator.seen[1]["w"].flat[0] == pytest.approx(after_one + 1.0)  # type: ignore[attr-defined]


async def test_a_drive_that_was_never_there_is_recorded_as_lost() -> None:
    run, _ = training(FakeDrive("csd-01"), names=["csd-00", "csd-01"], rounds=1)
    (record,) = await run.run()
    assert record.lost == ["csd-00"]


async def test_a_drive_that_dials_in_between_rounds_builds_the_model_and_takes_part() -> None:
    run, records = training(FakeDrive("csd-00"), names=["csd-00", "csd-01"], rounds=2)
    late = FakeDrive("csd-01")
    run._on_round = lambda record: (records.append(record), cast(Any, run._fleet).drives.append(late))  # type: ignore
    one, two = await run.run()
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


async def test_a_drive_that_counted_no_time_at_all_does_not_break_the_run() -> None:
    class Timeless(FakeDrive):
        def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
            yield from self.tensors(task.round, weights)
            yield self.trained(task, PhaseSeconds())

    run, _ = training(Timeless(), rounds=1)
    (record,) = await run.run()
    assert record.images_per_device_second == 0.0


async def test_a_drive_that_leaves_right_after_its_weights_still_counts_with_its_clock() -> None:
    class Leaves(FakeDrive):
        def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
            yield from super().train(task, weights)
            raise Cut

    run, _ = training(Leaves(clock="counted"), rounds=1)
    (record,) = await run.run()
    assert (record.clock, record.lost) == ("counted", [])

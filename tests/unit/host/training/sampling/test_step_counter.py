"""Counting steps of native drives on machines, with a stand-in for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DeviceCodeFailed, DeviceFailed, DeviceLost
from firmware_agent.common.frames.frame_fields import MAX_RAW_STEPS, MAX_SLICE_BYTES, PhaseSeconds
from firmware_agent.common.frames.session_frames import Job, Trained
from firmware_agent.common.frames.step_frames import Stepped
from host.config.job_file import JobConfig
from host.core.sampling.strata import FIRST_ROUND, FIRST_STAGES, ROUND_STAGES, STAGES, START, STEADY, Stratum
from host.core.tensor_sums import Scan
from host.training.accounting import DeviceReport
from host.training.round_exchange import Visited
from host.training.rounds.round_answer import RoundAnswer
from host.training.sampling.round_parts import RoundPart, split_into_frames
from host.training.sampling.step_counter import StepCounter
from host.training.sync.exchange.step_extension import DeviceOutcome, StepWork
from host.training.sync.exchange.weight_sender import Outbound, SentWeights

JOB = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}})
FRAME = Job("digits_cnn", {}, None, 1.0, 0, 1.0, 0.0, 32)
RECORDS = 32
# What a machine's first, second and later steps take; a drive's own are never asked.
SECONDS = [3.0, 2.0, 1.0]


class Drive:
    """A session, of which nothing but its device's name counts."""

    def __init__(self, device: str) -> None:
        self.device = device


class Machine:
    """A machine whose steps take `SECONDS`, or which fails each of them."""

    def __init__(self, error: DeviceFailed | None = None) -> None:
        self.error, self.steps = error, 0

    async def work(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(self)

    async def disturb(self, session: object, weight: int, deadline: Deadline) -> None:
        """Do as if."""

    async def visit(self, outbound: Any, _: object, __: object, works: Sequence[StepWork], ___: object) -> Any:
        if self.error is not None:
            return [DeviceOutcome(works[0], None, self.error)]
        seconds = SECONDS[min(self.steps, 2)]
        self.steps += 1
        return [DeviceOutcome(works[0], Stepped(1, RECORDS, 0.0, PhaseSeconds(forward=seconds), 0), None)]


class Counter(StepCounter):
    """A counter whose exchange with a machine is the machine."""

    def __init__(self, machines: Sequence[Any], devices: Sequence[str]) -> None:
        self.given = machines
        super().__init__(
            FRAME, JOB, machines, {device: np.arange(200) for device in devices}, lambda _: 0, lambda *_: None
        )

    def _make_exchange(self, number: int) -> Any:
        return self.given[number]

    async def step(self, number: int, drives: Sequence[Any], records: int = RECORDS) -> list[DeviceOutcome]:
        async def visit() -> list[DeviceOutcome]:
            own = Stepped(number, records, 0.0, PhaseSeconds(forward=99.0), 0)
            works = [StepWork(drive, np.arange(records, dtype=np.uint32), records) for drive in drives]
            return [DeviceOutcome(work, own, None) for work in works]

        gathering: Any = None  # of what nobody wants
        return await self.count_step(visit(), Outbound(number, SentWeights({})), gathering, ())

    def seconds_of_steps(self, *steps: Sequence[Any]) -> list[list[float]]:
        """Take so many steps of these drives each; return their seconds."""

        async def take() -> list[list[DeviceOutcome]]:
            return [await self.step(number, drives) for number, drives in enumerate(steps, start=1)]

        told = asyncio.run(take())
        return [[each.stepped.seconds.total for each in outcomes if each.stepped is not None] for outcomes in told]


def test_a_drives_first_steps_have_the_seconds_of_first_steps() -> None:
    counter = Counter([Machine()], ["a", "b"])
    drives = [Drive("a"), Drive("b")]
    assert counter.seconds_of_steps(*[drives] * 7) == [[3.0, 3.0], [2.0, 2.0], *[[1.0, 1.0]] * 5]


def test_a_second_machines_cold_steps_are_no_drives_own() -> None:
    """Both machines count from the first step on; the drives are warm when the second one is young."""
    counter = Counter([Machine(), Machine()], ["a", "b"])
    drives = [Drive("a"), Drive("b")]
    taken = counter.seconds_of_steps(*[drives] * 20)
    assert all(seconds == 1.0 for step in taken[2:] for seconds in step)


def test_the_steps_of_a_drive_that_comes_back_are_first_ones_again() -> None:
    counter = Counter([Machine()], ["a", "b"])
    before = [Drive("a"), Drive("b")]
    after = [Drive("a"), before[1]]
    taken = counter.seconds_of_steps(*[before] * 8, *[after] * 3)
    assert taken[8:] == [[3.0, 1.0], [2.0, 1.0], [1.0, 1.0]]


class Watched(Machine):
    """A machine that takes down what it is sent: a step's number, what of it counts, whether weights come with it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[int, str | None, bool]] = []

    async def visit(self, outbound: Any, _: object, __: object, works: Sequence[StepWork], ___: object) -> Any:
        self.sent.append((outbound.number, works[0].timed, outbound.weights is not None))
        return await super().visit(outbound, _, __, works, ___)


def test_a_steps_weights_go_to_a_machine_once_and_with_looks_never() -> None:
    machine = Watched()
    Counter([machine], ["a", "b"]).seconds_of_steps(*[[Drive("a"), Drive("b")]] * 40)
    looks = [sent for step, timed, sent in machine.sent if timed == "forward" and step <= 32]
    whole = [(step, sent) for step, timed, sent in machine.sent if timed == "whole"]
    assert looks
    assert not any(looks)
    assert {step for step, sent in whole if sent} == {step for step, _ in whole}
    assert len([step for step, sent in whole if sent]) == len({step for step, _ in whole})


class Replaced(Watched):
    """A machine in whose place another one is, from a step on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.sessions = at, [Drive("counter-00"), Drive("counter-00")]

    async def work(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(self.sessions[len({step for step, *_ in self.sent}) >= self.at])


def test_a_machine_that_takes_the_place_of_another_gets_weights_with_whatever_is_asked_first() -> None:
    for at in range(1, 12):
        machine = Replaced(at)
        Counter([machine], ["a"]).seconds_of_steps(*[[Drive("a")]] * 60)
        steps = list(dict.fromkeys(step for step, *_ in machine.sent))
        assert next(sent for step, _, sent in machine.sent if step == steps[at])


def test_looks_have_weights_that_are_no_older_than_so_many_steps() -> None:
    machine = Watched()
    Counter([machine], ["a"]).seconds_of_steps(*[[Drive("a")]] * 400)
    newest = 0
    for step, _, sent in machine.sent:
        newest = step if sent else newest
        assert step - newest <= 32


class Restarting(Machine):
    """A machine of which only the first step ends."""

    async def work(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(Drive("counter-00"))


def test_machines_that_do_not_stay_end_the_run() -> None:
    counter = Counter([Restarting()], ["a"])
    with pytest.raises(DeviceLost, match="no virtual machine stays"):
        counter.seconds_of_steps([Drive("a")])


class Whole(Machine):
    """A machine that computes no part of a step's records."""

    async def visit(self, outbound: Any, _: object, __: object, works: Sequence[StepWork], ___: object) -> Any:
        self.error = DeviceFailed("no batches of this size") if len(works[0].records) < RECORDS else None
        return await super().visit(outbound, _, __, works, ___)


def test_where_no_part_of_a_step_can_be_computed_whole_ones_are_looked_at() -> None:
    machine = Whole()
    taken = Counter([machine], ["a"]).seconds_of_steps(*[[Drive("a")]] * 40)
    assert [seconds for (seconds,) in taken] == [3.0, 2.0, *[1.0] * 38]
    assert machine.steps > 10


class Shared(Machine):
    """A machine that does one thing after the other, and notes beside which competitor its counter has it count."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.counter, self.seen = asyncio.Lock(), None, list[tuple[int, int]]()

    async def work(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async with self.lock:
            await asyncio.sleep(0)
            return await work(self)

    async def visit(self, outbound: Any, _: object, __: object, works: Sequence[StepWork], ___: object) -> Any:
        counter: Any = self.counter
        self.seen.append((len(works[0].records), counter._counting[0].weight))
        return await super().visit(outbound, _, __, works, ___)


def test_parts_of_steps_that_overlap_are_each_counted_beside_their_own_task() -> None:
    machine = Shared()
    counter = Counter([machine], ["a", "b"])
    machine.counter = counter  # type: ignore[assignment]
    counter._weight_of = {"a": 0, "b": 100}.__getitem__

    async def both() -> None:
        await asyncio.gather(counter.step(1, [Drive("a")], records=1), counter.step(2, [Drive("b")], records=2))

    asyncio.run(both())
    assert set(machine.seen) == {(1, 0), (2, 100)}


@pytest.mark.parametrize("error", [DeviceFailed("no memory"), DeviceCodeFailed("NameError: x")])
def test_a_step_that_fails_on_a_machine_alone_ends_a_synchronous_run(error: DeviceFailed) -> None:
    counter = Counter([Machine(error)], ["a"])
    with pytest.raises(DeviceFailed, match="a: a step of 32 records cannot be counted") as told:
        counter.seconds_of_steps([Drive("a")])
    assert not isinstance(told.value, DeviceCodeFailed)
    assert str(error) in str(told.value)


@given(st.integers(0, 6), st.integers(0, 3 * MAX_RAW_STEPS), st.integers(1, 1 << 16))
def test_counted_steps_of_a_round_fit_into_frames_that_each_begin_one(begin: int, steady: int, batch: int) -> None:
    stages = [FIRST_STAGES[2]] * begin + [STEADY] * min(steady, 64 * MAX_SLICE_BYTES // batch)
    parts = [RoundPart("a", Stratum(batch, batch, 0, stage, 0), place) for place, stage in enumerate(stages)]
    frames = list(split_into_frames(parts, batch))
    assert all(len(frame) <= MAX_RAW_STEPS for frame in frames)
    assert all(4 * batch * len(frame) <= MAX_SLICE_BYTES for frame in frames)
    first, *others = frames
    for frame in others:
        assert frame[0] == parts[0] or not begin
    own = [part for frame in others for part in frame if part.place >= len(first)]
    assert [*first, *own] == parts


class OfRounds(Counter):
    """A counter of rounds, whose machine takes a second for each record, and longer for first steps and beside a task.

    Attributes:
        looked: is set once the machine has taken steps.
        failing: drives with whose records it fails.
        competing: drive -> weight of the task in it.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__([Machine()], devices)
        self.looked, self.failing, self.competing = asyncio.Event(), set[str](), dict.fromkeys(devices, 0)
        self._weight_of = lambda device: self.competing[device]

    async def _take_steps(self, _: int, weights: object, parts: Sequence[RoundPart], encode_stratum: Stratum) -> None:
        await asyncio.sleep(0)
        if self.failing & {part.device for part in parts}:
            raise DeviceFailed("a record that the model does not take")
        for part in parts:
            taken, (size, usual) = self.steps.taken[0], (part.stratum.size, part.stratum.stage)
            stage = STAGES.get(taken[size] + 1, STEADY if usual in (START, *STAGES.values()) else usual)
            slower = FACTORS[stage if taken.total() else START] * (1.0 + bool(part.stratum.weight))
            self._count(part.device, part.stratum, PhaseSeconds(forward=size[0] * slower))
        self._count(parts[0].device, encode_stratum, PhaseSeconds(encode=1.0))
        self.looked.set()

    def change_competing(self, devices: Collection[str]) -> None:
        """Begin a task in drives that have none, and end it in others."""
        self.competing |= {device: 100 - self.competing[device] for device in devices}

    async def take_round(self, number: int, answering: Callable[[], Awaitable[Sequence[Any]]]) -> dict[str, float]:
        """Return the seconds of each drive that answers in a round."""

        async def visit() -> Visited:
            return Visited(frozenset(), [answer_of(drive, number) for drive in await answering()])

        visited = await self.count_round(number, {}, visit())
        return {each.session.device: each.returned.trained.seconds.total for each in visited.answers}


class AfterRounds(OfRounds):
    """A counter that looks at nothing while drives compute."""

    async def _look_ahead(self, number: int, weights: object) -> bool:
        return False


# What steps of each stage take longer than steady ones.
FACTORS = {START: 9.0, STAGES[1]: 3.0, STAGES[2]: 2.0, FIRST_ROUND: 1.2, STEADY: 1.0}
FACTORS |= {stage: FACTORS.get(stage, 1.5) for stage in (*ROUND_STAGES, *FIRST_STAGES)}


def answer_of(drive: Any, number: int) -> RoundAnswer:
    trained = Trained(number, 200, 7, 0.0, PhaseSeconds(forward=99.0), 0)
    report = DeviceReport(drive.device, "wall", trained, epochs=1, batch_size=32, sent_bytes=0, received_bytes=0)
    return RoundAnswer(drive, {}, report, Scan())


async def answering_with(*drives: Any, change: Callable[[], None] = lambda: None) -> Sequence[Any]:
    await asyncio.sleep(0)
    change()
    return drives


def test_a_round_is_looked_at_while_drives_compute_it() -> None:
    drives = [Drive("a"), Drive("b")]

    async def take() -> None:
        counter = OfRounds(["a", "b"])

        async def answering() -> Sequence[Any]:
            await asyncio.wait_for(counter.looked.wait(), 5.0)
            return drives

        for number in range(1, 3):
            await counter.take_round(number, partial(answering_with, *drives))
        for number in range(3, 6):
            counter.looked.clear()
            await counter.take_round(number, answering)

    asyncio.run(take())


@given(st.data())
def test_a_look_at_a_round_that_drives_still_compute_changes_its_seconds_no_more_than_a_later_one(
    data: st.DataObject,
) -> None:
    """Though drives fail, and the machine with their records, and are lost and dial in again: then not at all.

    Where drives are slowed down, whose round is looked at decides which of the steps that begin one are estimated from
    others; then within a tenth.
    """
    names = ["a", "b", "c"]
    some, close = st.sets(st.sampled_from(names)), data.draw(st.sampled_from([1e-9, 0.1]))

    async def take() -> None:
        counters, present = [OfRounds(names), AfterRounds(names)], {name: Drive(name) for name in names}
        for number in range(1, 7):
            failing, lost, slowed = (data.draw(some) if number > 2 else set() for _ in range(3))
            slowed = slowed if close == 0.1 else set()
            present |= {name: Drive(name) for name in lost}
            answering = [present[name] for name in names if name not in failing]
            told = []
            for counter in counters:
                counter.failing, change = failing, partial(counter.change_competing, slowed)
                told.append(await counter.take_round(number, partial(answering_with, *answering, change=change)))
            assert told[0] == pytest.approx(told[1], rel=close)

    asyncio.run(take())


def test_what_ends_a_round_ends_the_look_at_it() -> None:
    ended: list[bool] = []

    class Waiting(OfRounds):
        async def _look_ahead(self, number: int, weights: object) -> bool:
            try:
                return await asyncio.Event().wait()
            finally:
                ended.append(True)

    async def answering() -> Sequence[Any]:
        await asyncio.sleep(0)
        raise DeviceLost("no device is left")

    async def take() -> None:
        counter, drive = Waiting(["a"]), Drive("a")
        for number in range(1, 3):
            await counter.take_round(number, partial(answering_with, drive))
        with pytest.raises(DeviceLost, match="no device is left"):
            await counter.take_round(3, answering)
        assert ended

    asyncio.run(take())

"""Steps of fake drives through their channels: extensions, and sessions that have ended."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.session_frames import Slice, Tensors
from firmware_agent.common.frames.step_frames import Reduce, Reduced, Step, Timing
from firmware_agent.common.slices import Array, make_slice, tensor_specs
from firmware_agent.common.wire import AnyFrame
from host.training.sync.exchange.gradient_buffer import GradientBuffer
from host.training.sync.exchange.step_exchange import StepExchange, count_bytes
from host.training.sync.exchange.step_extension import Answer, DeviceOutcome, Reply, StepStage, StepWork
from host.training.sync.exchange.weight_sender import Outbound, SentWeights
from tests.support.fakes import JOB, Cut
from tests.support.fakes import Answer as FakeAnswer
from tests.support.sync import StepDrive

WEIGHTS: dict[str, Array] = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32), "n": np.zeros((), "<i8")}


class Asks(StepDrive):
    """A drive that asks for a sum before its gradients, and notes the answer; or does not wait, or is gone."""

    def __init__(self, device: str, ask: bool = True, gone: bool = False) -> None:
        super().__init__(device)
        self.ask, self.gone = ask, gone
        self.answers: list[bytes] = []
        self._task: Step | None = None

    def answer(self, frame: AnyFrame) -> Iterator[FakeAnswer]:
        if isinstance(frame, Step) and self.gone:
            raise Cut
        if isinstance(frame, Step) and self.ask:
            self._task = frame
            yield Reduce(frame.step, 0, self.device.encode().ljust(8))
        elif isinstance(frame, Reduced) and self._task is not None:
            self.answers.append(frame.values)
            yield from self.step_on(self._task, self.inbound.arrays())
        else:
            yield from super().answer(frame)


class Echo:
    """An extension that answers each device with what it sent, and notes who left."""

    failure = None

    def __init__(self) -> None:
        self.left: list[str] = []

    def open(self, device: str) -> EchoEnd:
        return EchoEnd()

    def alone(self, work: StepWork) -> Echo:
        return Echo()

    def leave(self, device: str) -> None:
        self.left.append(device)

    def refuses(self, device: str) -> bool:
        return False


class EchoEnd:
    tensors: Sequence[str] = ()
    news = True

    def __init__(self) -> None:
        self._asked = False

    def stage(self, frame: AnyFrame) -> StepStage | None:
        return StepStage.FORWARD if isinstance(frame, Reduce) else None

    def owed(self, stage: StepStage) -> str:
        return "" if self._asked or stage is not StepStage.REPORT else "reported its step without a question"

    def take(self, frame: AnyFrame) -> Answer | None:
        self._asked = True
        return functools.partial(self._echo, frame)

    async def _echo(self, frame: Any) -> Reply:
        return Reply(Reduced(frame.step, frame.index, frame.values * 2))


class Hands(Echo):
    """An extension to which each device hands tensors over; it takes none of a gradient's slices."""

    def open(self, device: str) -> EchoEnd:
        return HandsEnd()


class HandsEnd(EchoEnd):
    tensors: Sequence[str] = ("x",)

    def stage(self, frame: AnyFrame) -> StepStage | None:
        return StepStage.FORWARD if isinstance(frame, Reduce | Slice) else None

    def take(self, frame: AnyFrame) -> Answer | None:
        if isinstance(frame, Slice):
            raise ProtocolError(f"a slice of {frame.tensor}, which is not handed over")
        self._asked = True
        return None


class HandsOverGradients(StepDrive):
    """A drive that announces what it hands over, and then sends its gradients."""

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[FakeAnswer]:
        yield Reduce(task.step, 0, b"12345678")
        yield from super().step_on(task, weights)


async def visit(
    exchange: StepExchange,
    number: int,
    drives: Sequence[StepDrive],
    *extensions: Echo,
    timed: Timing | None = None,
) -> list[DeviceOutcome]:
    for drive in drives:
        if drive._pump is None:
            drive.pump()
    works = [StepWork(drive.session, np.arange(2, dtype=np.uint32), 2, timed) for drive in drives]
    sizes = {drive.device: 2 for drive in drives}
    gathering = GradientBuffer(tensor_specs(WEIGHTS), sizes, lambda *_: None, True)
    outbound = Outbound(number, SentWeights(WEIGHTS, tuple(WEIGHTS)))
    return await exchange.visit(outbound, works, gathering, (), extensions)


async def leave_alone(*_: object) -> None:
    return None


def make_exchange() -> StepExchange:
    return StepExchange(JOB, 5.0, lambda *_: None, leave_alone)


async def test_an_extension_takes_its_frames_answers_and_is_told_who_left() -> None:
    drives, extension = [Asks("csd-00"), Asks("csd-01", gone=True), Asks("csd-02")], Echo()
    outcomes = await visit(make_exchange(), 1, drives, extension)
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert [drive.answers for drive in drives] == [[b"csd-00  " * 2], [], [b"csd-02  " * 2]]
    assert extension.left == ["csd-01"]
    assert outcomes[0].up_bytes == outcomes[0].down_bytes == 0, "sums have no tensors"


async def test_what_an_extension_is_owed_is_asked_of_the_device_and_without_extensions_nothing_is_taken() -> None:
    (outcome,) = await visit(make_exchange(), 1, [Asks("csd-00", ask=False)], Echo())
    assert isinstance(outcome.error, ProtocolError)
    assert "csd-00 reported its step without a question" in str(outcome.error)
    (outcome,) = await visit(make_exchange(), 1, [Asks("csd-00")])
    assert "Reduce, which has no place in step 1" in str(outcome.error)


async def test_while_a_device_hands_over_its_slices_are_no_gradients() -> None:
    (outcome,) = await visit(make_exchange(), 1, [HandsOverGradients("csd-00")], Hands())
    assert isinstance(outcome.error, ProtocolError)
    assert "a slice of w, which is not handed over" in str(outcome.error)


async def test_a_session_that_failed_collects_no_more() -> None:
    class WrongSlice(StepDrive):
        def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[FakeAnswer]:
            yield Tensors(task.step, tensor_specs(WEIGHTS))
            yield make_slice(task.step + 1, "w", 0, b"1234")

    drive = WrongSlice("csd-00")
    (outcome,) = await visit(make_exchange(), 1, [drive])
    assert isinstance(outcome.error, ProtocolError)
    assert drive.session._collection.assembler is None


async def test_gradients_of_a_step_that_is_only_timed_are_refused() -> None:
    (outcome,) = await visit(make_exchange(), 1, [StepDrive("csd-00")], timed="whole")
    assert isinstance(outcome.error, ProtocolError)
    assert "Tensors, which has no place in step 1" in str(outcome.error)


@pytest.mark.parametrize("gone", [True, False])
async def test_a_session_that_has_ended_is_forgotten(gone: bool) -> None:
    exchange, drive = make_exchange(), Asks("csd-00", ask=False, gone=gone)
    await visit(exchange, 1, [drive])
    drive.session.close("the test ends it")
    session = weakref.ref(drive.session)
    assert drive._pump is not None
    drive._pump.cancel()
    del drive
    await visit(exchange, 2, [Asks("csd-01", ask=False)])
    gc.collect()
    assert session() is None


SIZES = st.integers(0, 10_000)


@given(st.lists(st.tuples(SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=8))
def test_no_overlapping_step_has_fewer_bytes_than_cross_its_cut_and_all_add_up(steps: list[tuple[int, ...]]) -> None:
    """At a report some of the next step's bytes at its cut have crossed (`early`), some are counted (`noted`)."""
    counted, sizes, crossed = 0, [], 0
    for (own, others, *_), (following, _, early, noted) in zip(steps, [*steps[1:], (0, 0, 0, 0)], strict=True):
        crossed += own + others
        early, noted = min(early, following), min(noted, following)
        over = count_bytes(counted, crossed + early, own, noted)
        sizes.append(over - counted)
        counted = over
    assert all(size >= own for size, (own, *_) in zip(sizes, steps, strict=True))
    # What had crossed and was not counted yet is made up for by later steps, as far as they have other bytes.
    final = count_bytes(counted, crossed + 20_000, 0, 0)
    assert final == crossed + 20_000

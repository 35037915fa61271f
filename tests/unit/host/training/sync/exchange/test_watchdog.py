"""What is new feeds the watchdog, bytes alone do not, and a drip ends too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.frames.session_frames import Slice, Tensors, Train
from firmware_agent.common.frames.step_frames import Step
from firmware_agent.common.slices import Array, cut_slices, tensor_specs
from firmware_agent.common.wire import encode
from host.core.records import EventKind
from host.training.sync.exchange.watchdog import WHOLE_FACTOR, Pace
from tests.support.fakes import Answer, FakeDrive
from tests.support.sync import StepDrive, SyncRun
from tests.unit.host.training.test_federated import Run


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.booleans()), max_size=200))
def test_a_device_is_given_up_without_news_and_at_the_latest_after_the_whole(gaps: list[tuple[float, bool]]) -> None:
    clock = [0.0]
    pace, news = Pace(1.0, lambda: clock[0]), 0.0
    for gap, new in gaps:
        clock[0] += gap
        assert (pace.left_seconds > 0) == (clock[0] < min(news + 1.0, WHOLE_FACTOR))
        if new:
            pace.moved()
            news = clock[0]
    pace.begin()
    assert pace.left_seconds == pytest.approx(1.0)


class Endless:
    """Sends a frame again and again, a while apart."""

    async def go_on(self, drive: FakeDrive, data: bytes) -> None:
        while not drive.session.closed:
            await drive._outbox.put(data)
            await asyncio.sleep(0.005)


class Repeats(StepDrive):
    """Repeats a valid slice for ever."""

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        arrays = {"w": weights["w"], "b": weights["b"], "n": weights["n"]}
        yield Tensors(task.step, tensor_specs(arrays))
        first = next(iter(cut_slices(task.step, arrays)))
        yield first
        self.task = asyncio.ensure_future(Endless().go_on(self, encode(first)))


class Drips(StepDrive):
    """Sends a byte at a time, each of them new, a while apart."""

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        arrays = {"w": weights["w"], "b": weights["b"], "n": weights["n"]}
        yield Tensors(task.step, tensor_specs(arrays))
        self.task = asyncio.ensure_future(self._drip(list(cut_slices(task.step, arrays, 1))))

    async def _drip(self, slices: list[Slice]) -> None:
        for piece in slices:
            await self._outbox.put(encode(piece))
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("drive", "told"), [(Repeats("csd-01"), "nothing new came"), (Drips("csd-01"), "was not whole after")]
)
async def test_a_drive_that_sends_without_end_is_given_up_and_the_others_go_on(drive: StepDrive, told: str) -> None:
    run = SyncRun(StepDrive("csd-00"), drive, records=40, watchdog_seconds=0.3)
    async with asyncio.timeout(30):
        rounds = await run.run()
    (lost,) = run.told(EventKind.LOST)
    assert lost.startswith("csd-01: in step 1: ")
    assert told in lost
    assert [part.device for part in rounds[0].steps[-1].devices] == ["csd-00"]
    drive.task.cancel()  # type: ignore[attr-defined]


async def test_in_a_federated_round_a_repeated_slice_keeps_nobody_waiting() -> None:
    class RepeatsRound(FakeDrive):
        def train(self, task: Train, weights: Mapping[str, Array]) -> Iterator[Answer]:
            yield Tensors(task.round, tensor_specs(weights))
            first = next(iter(cut_slices(task.round, weights)))
            self.task = asyncio.ensure_future(Endless().go_on(self, encode(first)))

    drive = RepeatsRound("csd-01")
    run = Run(FakeDrive("csd-00"), drive, rounds=1, watchdog="300 ms")
    async with asyncio.timeout(30):
        (record,) = await run.run()
    assert record.lost == ["csd-01"]
    drive.task.cancel()

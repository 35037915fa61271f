"""Synchronous steps on records that lie in drives: the host counts them, the drives draw them."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import CheckpointError
from firmware_agent.common.frames.session_frames import Failed
from firmware_agent.common.frames.step_frames import OwnRecords, Step
from firmware_agent.common.slices import Array
from host.training.sync.exchange.step_extension import StepWork
from tests.support.fakes import Answer
from tests.support.sync import StepDrive, SyncRun, assert_resumes, numbers_of

IN_PLACE = {"csd-00": "a" * 64, "csd-01": "b" * 64}
SIZES = 23, 9, 0


class Noting(StepDrive):
    """Keeps what the host names the records of its steps by; it cannot do its task in step `fails`."""

    def __init__(self, device: str, fails: int = 0) -> None:
        super().__init__(device)
        self.named: list[bytes | OwnRecords] = []
        self.failed: list[int] = []
        self._fails = fails

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        self.named.append(task.records)
        if task.step == self._fails:
            self.failed = numbers_of(task).tolist()
            yield Failed("Step", "no memory")
        else:
            yield from super().step_on(task, weights)

    def counted(self) -> list[OwnRecords]:
        assert all(isinstance(each, OwnRecords) for each in self.named)
        return [each for each in self.named if isinstance(each, OwnRecords)]


def make(fails: int = 0, **more: Any) -> SyncRun:
    drives = Noting("csd-00", fails), Noting("csd-01"), Noting("csd-02")
    fields: dict[str, Any] = {"rounds": 2, "in_place": IN_PLACE, "private": SIZES, "records": 40}
    return SyncRun(*drives, **fields | more)


@given(places=st.lists(st.integers(0, 30), min_size=1, max_size=20))
def test_places_are_named_by_as_few_stretches_as_there_are(places: list[int]) -> None:
    work = StepWork(StepDrive().session, np.array(places, np.uint32), 8, epoch=3)
    named = work.named
    assert isinstance(named, OwnRecords)
    assert [place for begin, count in named.runs for place in range(begin, begin + count)] == places
    assert all(begin != first + count for (first, count), (begin, _) in itertools.pairwise(named.runs))
    indices = dataclasses.replace(work, epoch=None).named
    assert isinstance(indices, bytes)
    assert np.frombuffer(indices, "<u4").tolist() == places


@pytest.mark.parametrize("records", [40, 0])
async def test_the_host_sends_an_epoch_and_counts_and_each_record_has_its_turn(records: int) -> None:
    run = make(records=records)
    await run.run()
    for drive, size in zip(run.drives[:2], SIZES, strict=False):
        assert [each.epoch for each in drive.counted()] == sorted(each.epoch for each in drive.counted())
        for epoch in (1, 2):
            runs = [run for each in drive.counted() if each.epoch == epoch for run in each.runs]
            assert [place for begin, count in runs for place in range(begin, begin + count)] == list(range(size))
    assert all(isinstance(each, bytes) for each in run.drives[2].named)
    assert Counter(r for step in run.drives[2].dealt for r in step) == Counter(dict.fromkeys(range(records), 2))


async def test_what_a_drive_did_not_compute_it_draws_again() -> None:
    run = make(fails=2, rounds=1)
    record = await run.training.run_round()
    drive = run.drives[0]
    assert record.steps[1].lost == ["csd-00"]
    assert set(drive.failed) < set(drive.by_step[3]) | set(drive.by_step[4])
    assert sorted(place for places in drive.dealt for place in places) == list(range(SIZES[0]))


async def test_a_run_on_records_in_place_goes_on_as_it_would_have() -> None:
    await assert_resumes(lambda: make(rounds=4, sync={"round_steps": 5}))


async def test_other_records_than_those_that_a_run_was_trained_on_are_refused() -> None:
    run = make(sync={"round_steps": 3})
    await run.training.run_round()
    state = run.training.state()
    assert state.progress["in_place"] == IN_PLACE
    other = make(in_place=IN_PLACE | {"csd-01": "c" * 64})
    with pytest.raises(CheckpointError, match="csd-01: other records lie there in place than this run trained on"):
        other.training.restore(state)
    make().training.restore(state)
    before = {name: value for name, value in state.progress.items() if name != "in_place"}
    make().training.restore(dataclasses.replace(state, progress=before))

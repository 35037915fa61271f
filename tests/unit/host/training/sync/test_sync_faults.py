"""The loop of synchronous training when a drive's clock, speed, batch or life is not as it should be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import DeviceLost, ProtocolError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Failed
from firmware_agent.common.frames.step_frames import Reduce, Reduced, Step, Stepped
from firmware_agent.common.slices import Array
from firmware_agent.common.wire import AnyFrame, decode, encode
from host.core.evaluation import NormSum, Structure
from host.core.records import EventKind, RoundRecord, StepRecord
from tests.support.examples import examples
from tests.support.fakes import Answer, Cut, FakeEvaluator
from tests.support.sync import StepDrive, SyncRun

THREE = [f"csd-0{number}" for number in range(3)]


class Still(StepDrive):
    """Its clock stands still, from one step on."""

    def __init__(self, device: str, since: int = 1, clock: str = "counted") -> None:
        super().__init__(device, clock=clock)
        self._since = since

    def stepped(self, task: Step) -> Stepped:
        stepped = super().stepped(task)
        return msgspec.structs.replace(stepped, seconds=PhaseSeconds()) if task.step >= self._since else stepped


def steps_of(rounds: list[RoundRecord]) -> list[StepRecord]:
    return [step for record in rounds for step in record.steps]


def used(run: SyncRun, steps: list[StepRecord]) -> Counter[int]:
    """Records whose gradients went into a step."""
    there = {(step.step, part.device) for step in steps for part in step.devices}
    return Counter(
        r for d in run.drives for step, dealt in d.by_step.items() if (step, d.device) in there for r in dealt
    )


@pytest.mark.parametrize(("tuner", "clock"), [("none", "counted"), ("hypertune", "counted"), ("none", "wall")])
async def test_a_drive_whose_clock_stands_still_is_left_out_before_the_tuner_sees_it(tuner: str, clock: str) -> None:
    run = SyncRun(
        StepDrive("csd-00", clock=clock),
        Still("csd-01", 2, clock),
        records=40,
        tuner=tuner,
        sync={"tuning": {"slow_batch": 4}},
    )
    (record,) = await run.run()
    assert [step.lost for step in record.steps[:5]] == [[], ["csd-01"], ["csd-01"], ["csd-01"], []]
    (first, *_) = run.told(EventKind.REJECTED)
    assert f"csd-01: in step 2: it says that 4 records took it 0 s by its {clock} clock" in first
    assert "its clock stands still, so restart it" in first
    assert [text.split(":")[0] for text in run.told(EventKind.SET_ASIDE)] == ["csd-01"]
    assert used(run, record.steps) == Counter(range(40))


async def test_a_run_whose_only_clock_stands_still_says_so() -> None:
    with pytest.raises(DeviceLost, match="took it 0 s by its counted clock"):
        await SyncRun(Still("csd-00")).run()


async def test_modelled_seconds_are_not_the_drives_to_say() -> None:
    run = SyncRun(StepDrive("csd-00", clock="wall"), Still("csd-01", clock="wall"), records=40, modelled=True)
    (record,) = await run.run()
    assert not run.told(EventKind.REJECTED)
    first, second = record.steps[0].devices
    assert first.compute_seconds == second.compute_seconds > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
async def test_seconds_that_are_no_time_end_the_session(value: float) -> None:
    class Odd(StepDrive):
        def stepped(self, task: Step) -> Stepped:
            return msgspec.structs.replace(super().stepped(task), seconds=PhaseSeconds(value, 1.0))

    run = SyncRun(StepDrive("csd-00"), Odd("csd-01"), records=40, tuner="hypertune", sync={"tuning": {"slow_batch": 4}})
    (record,) = await run.run()
    assert record.steps[0].lost == ["csd-01"]
    assert run.drives[1].session.closed
    (lost,) = run.told(EventKind.LOST)
    assert "malformed" in lost
    assert used(run, record.steps) == Counter(range(40))


@pytest.mark.slow
async def test_a_drive_that_is_slowed_too_much_is_parked_watched_and_taken_back() -> None:
    """Probes are computed beside the steps: they cost no time, and no gradient of theirs counts."""
    run = SyncRun(
        *(StepDrive(name) for name in THREE),
        records=100_000,
        tuner="hypertune",
        rounds=1,
        sync={"round_steps": 100, "tuning": {"slow_batch": 64}, "learning_rate_rule": "constant"},
        disturb=[{"device": "csd-01", "at_step": 10, "weight": 10_000, "steps": 20}],
    )
    (record,) = await run.run()
    parked, back = record.retunes
    assert (parked.after["csd-01"], back.before["csd-01"]) == (0, 0)
    assert back.after == parked.before == dict.fromkeys(THREE, 64)
    taken = parked.after["csd-00"], parked.after["csd-02"]
    assert min(taken) >= 64
    assert sum(taken) <= 3 * 64
    without = [step for step in record.steps if parked.step <= step.step < back.step]
    assert 30 < back.step <= 30 + 8 + 3  # there is a probe every eight steps, and then one in each until it is clear
    seconds = {step.array_seconds for step in without}
    assert len(seconds) == 1
    # Taking records over is at least as fast as leaving them: two thirds of the records in the plan's step.
    assert sum(taken) / seconds.pop() > 0.99 * 2 * 64 / record.steps[1].array_seconds
    probes = [step for step in run.drives[1].by_step if parked.step <= step < back.step]
    assert probes == [16, 24, 32, 33, 34]
    for step in without:
        assert [part.device for part in step.devices] == ["csd-00", "csd-02"]
        assert sum(part.weight for part in step.devices) == pytest.approx(1.0)
        assert (step.late, step.lost) == ([], [])
    # The weights are what the gradients of those in time make of them, and every record is dealt once.
    assert max(used(run, record.steps).values()) == 1


@pytest.mark.slow
async def test_a_parked_drive_goes_on_alone_when_the_others_die() -> None:
    class Dying(StepDrive):
        def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
            if task.step == 20:
                raise Cut
            yield from super().step_on(task, weights)

    run = SyncRun(
        *(Dying("csd-00"), StepDrive("csd-01")),
        records=100_000,
        tuner="hypertune",
        sync={"round_steps": 30, "tuning": {"slow_batch": 64}},
        disturb=[{"device": "csd-01", "at_step": 5, "weight": 10_000, "steps": 100}],
    )
    (record,) = await run.run()
    parked, alone = record.retunes
    assert (parked.after["csd-01"], alone.step) == (0, 20)
    assert alone.after == {"csd-00": 0, "csd-01": 64}
    assert [step.step for step in record.steps] == list(range(1, 31))
    assert all([part.device for part in step.devices] == ["csd-01"] for step in record.steps[19:])


@pytest.mark.slow
async def test_a_parked_drive_that_dies_at_its_probe_costs_nothing() -> None:
    class Fragile(StepDrive):
        def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
            if task.step >= 10 and len(task.records) == 4:
                raise Cut
            yield from super().step_on(task, weights)

    run = SyncRun(
        *(StepDrive("csd-00"), Fragile("csd-01")),
        records=100_000,
        tuner="hypertune",
        sync={"round_steps": 40, "tuning": {"slow_batch": 64}},
        disturb=[{"device": "csd-01", "at_step": 5, "weight": 10_000, "steps": 100}],
    )
    (record,) = await run.run()
    assert [step.lost for step in record.steps if step.lost] == [["csd-01"]]
    assert len(record.steps) == 40
    first = record.retunes[0].after
    assert first["csd-01"] == 0
    assert 64 <= first["csd-00"] <= 2 * 64
    assert all(part.device == "csd-00" for step in record.steps[10:] for part in step.devices)


@pytest.mark.slow
async def test_a_retune_that_is_announced_to_a_drive_that_dies_before_the_step_holds_for_the_others() -> None:
    job = {
        "tuner": "hypertune",
        "sync": {"round_steps": 40, "tuning": {"slow_batch": 64}},
        "disturb": [{"device": "csd-01", "at_step": 10, "weight": 100, "steps": 30}],
    }
    calm = SyncRun(*(StepDrive(name) for name in THREE), records=4_000, **job)
    (record,) = await calm.run()
    announced = record.retunes[0]

    class Dying(StepDrive):
        def answer(self, frame: AnyFrame) -> Iterator[Answer]:
            if isinstance(frame, Step) and frame.step == announced.step:
                assert len(frame.records) == 4 * announced.after["csd-01"]
                raise Cut
            yield from super().answer(frame)

    run = SyncRun(StepDrive("csd-00"), Dying("csd-01"), StepDrive("csd-02"), records=4_000, **job)
    (record,) = await run.run()
    same, gone = record.retunes
    assert (same.step, same.after) == (announced.step, announced.after)
    assert gone.step == announced.step + 1
    assert gone.after == {**announced.after, "csd-01": 0}
    step = record.steps[announced.step - 1]
    assert (step.step, step.lost) == (announced.step, ["csd-01"])
    others = {name: batch for name, batch in announced.after.items() if name != "csd-01"}
    assert {part.device: part.batch_size for part in step.devices} == others
    assert sum(part.weight for part in step.devices) == pytest.approx(1.0)
    # Its records come again, with the others.
    (lost,) = [drive.by_step[announced.step] for drive in calm.drives[1:2]]
    seen = used(run, record.steps)
    assert all(seen[record] for record in lost)


class NormEvaluator(FakeEvaluator):
    """Of a model that normalises its batches; a step adds `sums` sums of one number up."""

    def __init__(self, sums: int = 0) -> None:
        super().__init__()
        self.sums = [NormSum(1, 0.0)] * sums

    def initial_weights(self) -> dict[str, Array]:
        weights = super().initial_weights()
        weights["n.running_var"] = weights.pop("n")
        return weights

    def structure(self) -> Structure:
        return Structure(("w", "b"), ("n.running_var",), {})


class NormDrive(StepDrive):
    """A drive of a model that normalises its batches: a single record alone cannot be."""

    def gradients(self, records: Array, weights: Mapping[str, Array]) -> dict[str, Array]:
        return super().gradients(records, {**weights, "n": weights["n.running_var"]}) | {}

    def tensors(self, exchange: int, arrays: Mapping[str, Array]) -> Iterator[Answer]:
        names = {"n": "n.running_var"}
        yield from super().tensors(exchange, {names.get(name, name): array for name, array in arrays.items()})


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    records=st.integers(1, 40),
    batch=st.integers(1, 9),
    drives=st.integers(1, 3),
    mode=st.sampled_from(["device", "synchronised", "frozen"]),
)
def test_no_drive_has_to_normalise_a_single_record_unless_it_has_no_other(
    records: int, batch: int, drives: int, mode: str
) -> None:
    sync = {"batch_norm": mode}
    run = SyncRun(
        *(NormDrive(name) for name in THREE[:drives]),
        records=records,
        batch_size=batch,
        evaluator=NormEvaluator(),
        sync=sync,
    )
    (record,) = asyncio.run(run.run())
    dealt = [step for drive in run.drives for step in drive.dealt]
    if mode == "device" and records > 1:
        assert min(len(step) for step in dealt) >= 2
    for step in dealt:
        assert len(set(step)) == len(step)
    assert set(used(run, record.steps)) == set(range(records))
    for step in record.steps:
        assert sum(part.weight for part in step.devices) == pytest.approx(1.0)
        for part in step.devices:
            drive = next(drive for drive in run.drives if drive.device == part.device)
            assert part.batch_size == len(drive.by_step[step.step])


class Meeting(NormDrive):
    """Adds numbers up with all others, `SUMS` times, in the middle of a step."""

    SUMS = 3

    def __init__(self, device: str, ends: str = "", at: int = 0) -> None:
        """`ends` the second step in its exchange number `at`: ``cut``, ``failed``, or not at all."""
        super().__init__(device)
        self._ends, self._at = ends, at
        self.sums: list[tuple[int, int, float]] = []
        self._task: Step | None = None

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        if isinstance(frame, Step):
            self._task = frame
            yield from self._meet(frame, 0)
        elif isinstance(frame, Reduced):
            self.sums.append((frame.step, frame.index, float(np.frombuffer(frame.values)[0])))
            assert self._task is not None
            yield from self._meet(self._task, frame.index + 1)
        else:
            yield from super().answer(frame)

    def _meet(self, task: Step, index: int) -> Iterator[Answer]:
        if self._ends and task.step == 2 and index == self._at:
            if self._ends == "cut":
                raise Cut
            yield Failed("Step", "no memory")
        elif index < self.SUMS:
            yield Reduce(task.step, index, np.array([float(1 + int(self.device[-1]))]).tobytes())
        else:
            yield from self.step_on(task, self.inbound.arrays())


@pytest.mark.parametrize("at", range(Meeting.SUMS + 1))
@pytest.mark.parametrize("ends", ["cut", "failed"])
async def test_when_a_drive_ends_in_the_middle_of_normalising_together_the_others_go_on(ends: str, at: int) -> None:
    run = SyncRun(
        *(Meeting("csd-00"), Meeting("csd-01", ends, at), Meeting("csd-02")),
        records=48,
        evaluator=NormEvaluator(Meeting.SUMS),
        sync={"batch_norm": "synchronised"},
    )
    (record,) = await run.run()
    second = record.steps[1]
    assert second.lost == ["csd-01"]
    assert [part.device for part in second.devices] == ["csd-00", "csd-02"]
    assert sum(part.weight for part in second.devices) == pytest.approx(1.0)
    first, _, last = run.drives
    assert isinstance(first, Meeting)
    assert isinstance(last, Meeting)
    assert first.sums == last.sums  # all that take part have the same sums
    of_second = [total for step, _, total in first.sums if step == 2]
    assert of_second == [6.0] * at + [4.0] * (Meeting.SUMS - at)
    assert used(run, record.steps) == Counter(range(48))


class Spurious(StepDrive):
    """Sends values to add up in a job that adds nothing up."""

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        if isinstance(frame, Step) and frame.step == 2:
            yield Reduce(frame.step, 0, np.array([1.0]).tobytes())
        else:
            yield from super().answer(frame)


class SkipsSums(Meeting):
    """Reports a step without the sums that all others wait for."""

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        if isinstance(frame, Step) and frame.step == 2:
            yield from self.step_on(frame, self.inbound.arrays())
        else:
            yield from super().answer(frame)


class LyingSums(Meeting):
    """Adds up what it wants to."""

    def __init__(self, device: str, value: float) -> None:
        super().__init__(device)
        self._value = value

    def _meet(self, task: Step, index: int) -> Iterator[Answer]:
        if task.step == 2 and index == 1:
            yield Reduce(task.step, index, np.array([self._value]).tobytes())
        else:
            yield from super()._meet(task, index)


@pytest.mark.parametrize(
    ("liar", "told"),
    [
        (lambda: Spurious("csd-03"), "sum 0; a step of this job has 0"),
        (lambda: SkipsSums("csd-03"), "reported its step after 0 of 3 sums"),
        (lambda: LyingSums("csd-03", float("nan")), "no finite numbers"),
        (lambda: LyingSums("csd-03", 1e20), "root mean square of"),
    ],
    ids=["spurious", "skipped", "nan", "huge"],
)
async def test_a_drive_that_lies_about_sums_is_named_and_the_others_go_on(
    liar: Callable[[], StepDrive], told: str
) -> None:
    """Nobody waits for it in vain, also with the watchdog at a second."""
    drive = liar()
    synchronised = isinstance(drive, Meeting)
    honest = [Meeting(name) if synchronised else StepDrive(name) for name in THREE]
    run = SyncRun(
        *(*honest, drive),
        records=64,
        evaluator=NormEvaluator(Meeting.SUMS) if synchronised else None,
        sync={"batch_norm": "synchronised" if synchronised else "device"},
        watchdog_seconds=5.0,
        watchdog="5 s",
    )
    async with asyncio.timeout(20):
        (record,) = await run.run()
    (named,) = run.told(EventKind.REJECTED) if isinstance(drive, LyingSums) else run.told(EventKind.LOST)
    assert named.startswith("csd-03: in step 2: ")
    assert told in named
    assert record.steps[1].lost == ["csd-03"]
    assert [part.device for part in record.steps[1].devices] == THREE


def test_a_step_that_took_no_time_can_be_said_and_one_that_took_no_number_cannot() -> None:
    """So that the host's own check is needed, and suffices."""
    stepped = Stepped(1, 2, 0.5, PhaseSeconds(), 0)
    assert decode(encode(stepped)) == stepped
    with pytest.raises(ProtocolError):
        decode(encode(msgspec.structs.replace(stepped, seconds=PhaseSeconds(forward=float("nan")))))

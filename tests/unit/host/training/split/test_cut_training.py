"""Synchronous training of a model that is cut, on fake drives: the whole model's steps, and what goes wrong in one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import DeviceFailed, DeviceLost, Diverged
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.frames.session_frames import Slice
from firmware_agent.common.frames.step_frames import ActivationGradients, Activations, Step
from firmware_agent.common.slices import Array, make_slice
from firmware_agent.common.split.activations import LABELS, RANDOM
from firmware_agent.common.weights import state_arrays
from firmware_agent.common.wire import AnyFrame
from host.core.failures import Failures
from host.core.records import EventKind, StepRecord
from host.training.contributions import reason_of
from host.training.sync.exchange.activation_exchange import ActivationExchange
from host.training.sync.server_model.activation_types import ActivationBatch, ActivationGrads
from host.training.sync.server_model.server_model import ServerModel, ServerModelPass
from host.training.sync.step_result import StepResult
from host.training.sync.sync_step import Underway
from tests.support.cut_drives import (
    LAYERS,
    CutDrive,
    NetEvaluator,
    cut_small_net,
    images_of,
    labels_of,
    make_server_model,
    whole_step,
)
from tests.support.examples import examples
from tests.support.fakes import Answer, Cut
from tests.support.sync import TAIL_SECONDS, StepDrive, SyncRun, assert_resumes


def run_of(*drives: CutDrive, layer: str = "3", **job: Any) -> SyncRun:
    return SyncRun(*drives, evaluator=NetEvaluator(), tail=make_server_model(layer), **job)


class Dying(CutDrive):
    """Ends its stream in one step: before what crosses has left, or behind it, or when its gradient has come."""

    def __init__(self, device: str, step: int, when: str) -> None:
        super().__init__(device)
        self._step, self._when = step, when

    def hand_over(self, task: Step, part: int) -> Iterator[Answer]:
        for answer in super().hand_over(task, part):
            if (task.step, self._when) == (self._step, "before") and isinstance(answer, Slice):
                raise Cut
            yield answer
        if (task.step, self._when) == (self._step, "between"):
            raise Cut

    def go_back(self, back: Mapping[str, Array]) -> Iterator[Answer]:
        if self._task is not None and (self._task.step, self._when) == (self._step, "behind"):
            raise Cut
        yield from super().go_back(back)


class Wrong(CutDrive):
    """Changes what it hands over."""

    def __init__(self, device: str, change: Any) -> None:
        super().__init__(device)
        self._change = change

    def hand_over(self, task: Step, part: int) -> Iterator[Answer]:
        for answer in super().hand_over(task, part):
            yield self._change(answer)


def steps_of(run: SyncRun) -> list[StepRecord]:
    return [step for record in run.rounds for step in record.steps]


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(
    layer=st.sampled_from(LAYERS),
    batches=st.integers(2, 7),
    drives=st.integers(1, 3),
    records=st.integers(8, 30),
    needs_all=st.booleans(),
)
def test_steps_are_those_of_the_whole_model(
    layer: str, batches: int, drives: int, records: int, needs_all: bool
) -> None:
    parts = [CutDrive(f"csd-0{number}", layer) for number in range(drives)]
    clip = {"clip_norm": 1e9} if needs_all else {}
    run = run_of(*parts, layer=layer, records=records, batch_size=batches, sync=clip)
    weights = NetEvaluator().initial_weights()
    asyncio.run(run.run())
    for step in steps_of(run):
        groups = [part.by_step[step.step] for part in parts if step.step in part.by_step]
        assert step.samples == sum(map(len, groups))
        weights = whole_step(weights, groups, step.learning_rate)
        assert np.isfinite(step.loss)
    for name, array in run.training.weights.items():
        np.testing.assert_allclose(array, weights[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [2, 3])
def test_records_that_are_computed_in_parts_cross_in_parts(micro_batch: int) -> None:
    """Drives with more parts go on when the others have none left."""
    drives = [CutDrive("csd-00"), CutDrive("csd-01")]
    run = run_of(*drives, records=20, private=[4, 0], batch_size=6, sync={"micro_batch": micro_batch})
    asyncio.run(run.run())
    assert not run.told(EventKind.FAILED) + run.told(EventKind.LOST)
    assert all(np.isfinite(array).all() for array in run.training.weights.values())
    sent = [frame for drive in drives for frame in drive.frames if isinstance(frame, Step)]
    assert all(-(-len(task.records) // 4 // micro_batch) >= 1 for task in sent)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "between", "behind"])
async def test_a_drive_that_is_lost_within_a_step_neither_holds_it_up_nor_spoils_it(when: str) -> None:
    run = run_of(CutDrive("csd-00"), Dying("csd-01", 2, when), CutDrive("csd-02"), records=40)
    async with asyncio.timeout(30):
        (record,) = await run.run()
    second = record.steps[1]
    assert second.lost == ["csd-01"]
    assert [part.device for part in second.devices] == ["csd-00", "csd-02"]
    assert sum(part.weight for part in second.devices) == pytest.approx(1.0)
    # Its activations went through the host's part if they had come in time: these count, and no gradient of its own.
    assert second.mixed in {"before": [False], "between": [False, True], "behind": [True]}[when]
    seen = {r for drive in run.drives for step, dealt in drive.by_step.items() if step != 2 for r in dealt}
    assert set(run.drives[1].by_step[2]) <= seen  # its records come again
    assert all(np.isfinite(array).all() for array in run.training.weights.values())


@pytest.mark.parametrize("when", ["before", "between", "behind"])
async def test_a_step_in_which_everyone_is_lost_leaves_the_weights_as_they_are(when: str) -> None:
    run = run_of(Dying("csd-00", 1, when), records=12)
    before = {name: array.copy() for name, array in run.training.weights.items()}
    with pytest.raises(DeviceLost):
        async with asyncio.timeout(30):
            await run.run()
    for name, array in run.training.weights.items():
        assert np.array_equal(array, before[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: msgspec.structs.replace(a, part=1) if isinstance(a, Activations) else a, "sent part 1 of step"),
        (lambda a: msgspec.structs.replace(a, step=9) if isinstance(a, Activations) else a, "of step 9"),
        (
            lambda a: msgspec.structs.replace(a, specs=a.specs[1:]) if isinstance(a, Activations) else a,
            "tensors announced are not the model's",
        ),
        (
            lambda a: msgspec.structs.replace(a, checksum=bytes(8)) if isinstance(a, Slice) else a,
            "do not match their checksum",
        ),
    ],
)
async def test_what_does_not_belong_there_loses_its_drive_alone(change: Any, reason: str) -> None:
    run = run_of(CutDrive("csd-00"), Wrong("csd-01", change), records=24)
    async with asyncio.timeout(30):
        (record,) = await run.run()
    assert [reason in told for told in run.told(EventKind.LOST)] == [True]
    assert [part.device for part in record.steps[0].devices] == ["csd-00"]


class OddLabels(CutDrive):
    """Says that a record is of a class that there is not."""

    label = 7

    def hand_over(self, task: Step, part: int) -> Iterator[Answer]:
        for answer in super().hand_over(task, part):
            if isinstance(answer, Slice) and answer.tensor == LABELS:
                data = np.full(len(answer.data) // 8, self.label, "<i8").tobytes()
                yield make_slice(task.step, LABELS, 0, data)
            else:
                yield answer


@pytest.mark.slow
@pytest.mark.parametrize("label", [7, -1])
async def test_a_label_of_no_class_loses_its_drive_alone(label: int) -> None:
    odd = OddLabels("csd-01")
    odd.label = label
    run = run_of(CutDrive("csd-00"), odd, records=24)
    async with asyncio.timeout(30):
        (record,) = await run.run()
    assert [f"sent the label {label}" in told for told in run.told(EventKind.LOST)] == [True]
    assert all(np.isfinite(step.loss) for step in record.steps)


class OddRandom(CutDrive):
    """Says that it has drawn, and sends no state of a generator."""

    def hand_over(self, task: Step, part: int) -> Iterator[Answer]:
        size = len(torch.get_rng_state())
        for answer in super().hand_over(task, part):
            if isinstance(answer, Activations):
                yield msgspec.structs.replace(answer, specs=[*answer.specs, TensorSpec(RANDOM, "|u1", (size,))])
            else:
                yield answer
        yield make_slice(task.step, RANDOM, 0, bytes(range(256)) * (size // 256) + bytes(size % 256))


@pytest.mark.slow
async def test_a_state_of_no_generator_loses_its_drive_alone() -> None:
    run = run_of(CutDrive("csd-00"), OddRandom("csd-01"), records=24)
    async with asyncio.timeout(30):
        (record,) = await run.run()
    assert ["a state of its random generator that is none" in told for told in run.told(EventKind.LOST)] == [True]
    assert [part.device for part in record.steps[0].devices] == ["csd-00"]
    assert not run.told(EventKind.FAILED)


class Scaling(CutDrive):
    """Hands over activations times a factor, from one step on; with `stubborn` it reports its step all the same."""

    def __init__(self, device: str, factor: float, since: int = 1, stubborn: bool = False) -> None:
        super().__init__(device)
        self.factor, self.since, self.stubborn = factor, since, stubborn

    def hand_over(self, task: Step, part: int) -> Iterator[Answer]:
        front, scale = self.front, self.factor if task.step >= self.since else 1.0
        self.front = lambda images: tuple(each * scale for each in front(images))  # type: ignore[assignment]
        try:
            yield from super().hand_over(task, part)
        finally:
            self.front = front

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        refused = isinstance(frame, ActivationGradients) and frame.error
        if refused and self.stubborn and self._task is not None:
            yield from self.tensors(self._task.step, {n: np.zeros_like(a) for n, a in state_arrays(self.front).items()})
            yield self.stepped(self._task)
        else:
            yield from super().answer(frame)


@pytest.mark.slow
@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("since", [1, 4])
@pytest.mark.parametrize(
    ("factor", "reason"), [(1e3, "norm"), (1e20, "norm"), (1e200, "norm"), (math.nan, "not_finite")]
)
async def test_activations_beyond_all_others_are_refused_and_named_and_go_into_no_gradient(
    factor: float, reason: str, since: int, stubborn: bool
) -> None:
    honest = [CutDrive(f"csd-{place:02}") for place in range(3)]
    run = run_of(*honest, Scaling("csd-03", factor, since, stubborn), records=96, batch_size=4)
    async with asyncio.timeout(30):
        (record,) = await run.run()
    rejected = run.told(EventKind.REJECTED)
    assert [told.split(":")[0] for told in rejected] == ["csd-03"] * 3
    assert [f"step {number}:" in told for number, told in enumerate(rejected, since)] == [True] * 3
    assert {str(reason_of(told)) for told in rejected} == {reason}
    assert [told.split(":")[0] for told in run.told(EventKind.SET_ASIDE)] == ["csd-03"]
    assert not run.told(EventKind.FAILED)
    assert not run.told(EventKind.LOST)
    weights = NetEvaluator().initial_weights()
    for step in record.steps:
        assert ("csd-03" in names_of(step)) == (step.step < since)
        groups = [drive.by_step[step.step] for drive in run.drives if drive.device in names_of(step)]
        weights = whole_step(weights, groups, step.learning_rate)
    for name, array in run.training.weights.items():
        np.testing.assert_allclose(array, weights[name], rtol=1e-10, atol=1e-10, err_msg=name)


class Skipping(CutDrive):
    """Reports its second step without having handed anything over."""

    def answer(self, frame: AnyFrame) -> Iterator[Answer]:
        if isinstance(frame, Step) and frame.step == 2:
            yield from self.tensors(frame.step, {n: np.zeros_like(a) for n, a in state_arrays(self.front).items()})
            yield self.stepped(frame)
        else:
            yield from super().answer(frame)


async def test_a_drive_that_reports_a_step_without_its_activations_is_named_and_the_others_go_on() -> None:
    honest = [CutDrive(f"csd-{place:02}") for place in range(3)]
    run = run_of(*honest, Skipping("csd-03"), records=96, batch_size=4, watchdog_seconds=5.0, watchdog="5 s")
    async with asyncio.timeout(20):
        (record,) = await run.run()
    (lost,) = run.told(EventKind.LOST)
    assert lost == "csd-03: in step 2: csd-03 reported its step before it had handed over all activations"
    assert [names_of(step) for step in record.steps[1:]] == [{"csd-00", "csd-01", "csd-02"}] * (len(record.steps) - 1)


def poison(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[], None] = lambda: None) -> None:
    """Have the tail give NaN, or raise, for records of whom hands over nothing but zeros."""
    honest = ServerModel._leaves

    def leaves(self: ServerModel, batch: ActivationBatch) -> list[torch.Tensor]:
        found = honest(self, batch)
        if all(not np.any(values) for values in batch.values):
            spoil()
            found = [leaf.detach().mul_(math.nan).requires_grad_(leaf.requires_grad) for leaf in found]
        return found

    monkeypatch.setattr(ServerModel, "_leaves", leaves)


@pytest.mark.slow
@pytest.mark.parametrize("drives", [2, 4])
@pytest.mark.parametrize("since", [1, 4])
async def test_who_makes_the_host_compute_no_number_is_refused_and_named_alone(
    drives: int, since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch)
    liar = f"csd-{drives - 1:02}"
    honest = [CutDrive(f"csd-{place:02}") for place in range(drives - 1)]
    run = run_of(*honest, Scaling(liar, 0.0, since, stubborn=True), records=96, batch_size=4)
    async with asyncio.timeout(30):
        (record,) = await run.run()
    rejected = run.told(EventKind.REJECTED)
    assert [told.split(":")[0] for told in rejected] == [liar] * 3
    assert {str(reason_of(told)) for told in rejected} == {"not_finite"}
    assert "of nobody else's" in rejected[0]
    assert [told.split(":")[0] for told in run.told(EventKind.SET_ASIDE)] == [liar]
    weights = NetEvaluator().initial_weights()
    for step in record.steps:
        assert (liar in names_of(step)) == (step.step < since)
        groups = [drive.by_step[step.step] for drive in run.drives if drive.device in names_of(step)]
        weights = whole_step(weights, groups, step.learning_rate)
    for name, array in run.training.weights.items():
        np.testing.assert_allclose(array, weights[name], rtol=1e-10, atol=1e-10, err_msg=name)


async def test_with_whose_part_alone_the_users_model_raises_fails_alone_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spoil() -> None:
        raise IndexError("index out of range in self")

    poison(monkeypatch, spoil)
    tail = make_server_model("3")(NetEvaluator().initial_weights())
    names = ["csd-00", "csd-01", "csd-02"]
    crossings = ActivationExchange(tail, 1, dict.fromkeys(names, (2,)))
    values = [each.detach().numpy() for each in cut_small_net("3").front.eval()(images_of([1, 2]))]
    labels = labels_of([1, 2]).numpy()
    batches = [ActivationBatch(name, [each * (name != "csd-01") for each in values], labels) for name in names]
    async with asyncio.timeout(30):
        first, second, third = await asyncio.gather(*(crossings.add(0, batch) for batch in batches))
    assert isinstance(first, ActivationGrads)
    assert isinstance(third, ActivationGrads)
    assert isinstance(second, DeviceFailed)
    assert "with what csd-01 handed over: IndexError" in str(second)
    assert crossings.failure is not None
    assert crossings.passing.devices == ["csd-00", "csd-02"]


@pytest.mark.slow
async def test_a_host_part_without_a_finite_gradient_ends_the_run_and_keeps_its_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of(CutDrive("csd-00"), CutDrive("csd-01"), records=24)
    honest = ServerModelPass.gradients
    monkeypatch.setattr(ServerModelPass, "gradients", lambda self: {n: a * math.nan for n, a in honest(self).items()})
    with pytest.raises(Diverged, match=r"step 1: .* the gradient of 3\.weight, which the host has of the model"):
        async with asyncio.timeout(30):
            await run.run()
    assert all(np.isfinite(array).all() for array in run.training.weights.values())


@pytest.mark.slow
async def test_a_part_that_cannot_be_normalised_fails_its_drive_alone() -> None:
    """The host normalises behind this cut: a lone record has no variance."""
    tail = make_server_model("3")(NetEvaluator().initial_weights())
    crossings = ActivationExchange(tail, 1, {"csd-00": (2,), "csd-01": (1,)})

    def batch(device: str, records: list[int]) -> ActivationBatch:
        values = [each.detach().numpy() for each in cut_small_net("3").front.eval()(images_of(records))]
        return ActivationBatch(device, values, labels_of(records).numpy())

    first = asyncio.ensure_future(crossings.add(0, batch("csd-00", [1, 2])))
    second = await crossings.add(0, batch("csd-01", [3]))
    assert isinstance(second, DeviceFailed)
    assert "single value per channel" in str(second)
    crossings.leave("csd-01")
    async with asyncio.timeout(30):
        assert isinstance(await first, ActivationGrads)
    assert not crossings.mixed
    assert [make_server_model(layer, kind)(NetEvaluator().initial_weights()).smallest for layer, kind in SMALLEST] == [
        2,
        1,
        1,
    ]


async def test_a_host_part_that_raises_is_a_failure_of_the_users_model() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("my bug")

    tail = make_server_model("3")(NetEvaluator().initial_weights())
    crossings = ActivationExchange(tail, 1, {"csd-00": (2,)})
    crossings.passing.compute = fail  # type: ignore[method-assign, assignment]
    values = [each.detach().numpy() for each in cut_small_net("3").front.eval()(images_of([1, 2]))]
    back = await crossings.add(0, ActivationBatch("csd-00", values, labels_of([1, 2]).numpy()))
    assert isinstance(back, DeviceFailed)
    assert crossings.failure is not None
    failures = Failures(goes_on=False)
    failures.take(crossings.failure, "host", 1)
    assert failures.list()[0].headline == "the model failed on host in round 1, step 1: RuntimeError: my bug"
    assert "in fail" in failures.list()[0].traceback


SMALLEST = [("4", "device"), ("4", "frozen"), ("4", "synchronised")]


async def test_a_host_part_that_fails_fails_the_step_of_those_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    run = run_of(CutDrive("csd-00"), records=12)
    monkeypatch.setattr(ServerModel, "compute", fail)
    with pytest.raises(DeviceFailed, match="the host's part of the model: MemoryError"):
        async with asyncio.timeout(30):
            await run.run()
    assert run.drives[0].errors


@pytest.mark.slow
async def test_what_crosses_and_the_hosts_part_are_in_the_composed_step() -> None:
    run = run_of(CutDrive("csd-00"), CutDrive("csd-01"), records=16)
    (record,) = await run.run()
    tails = [span for span in record.spans if span.phase == "tail"]
    assert [span.seconds for span in tails] == pytest.approx([TAIL_SECONDS * step.samples for step in record.steps])
    for part in record.devices:
        drive = next(drive for drive in run.drives if drive.device == part.device)
        assert part.received_bytes <= sum(map(len, drive.sent))
        spans = [span for span in record.spans if span.device == part.device]
        assert sum(span.bytes for span in spans if span.phase == "send") == part.received_bytes
        assert sum(span.bytes for span in spans if span.phase == "receive") == part.sent_bytes


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("clip_norm", [None, 1e9])
async def test_a_late_drives_part_is_in_no_layers_gradient_and_its_records_come_again(
    micro_batch: int | None, clip_norm: float | None
) -> None:
    drives = [CutDrive("csd-00"), CutDrive("csd-01", slowdown=5.0), CutDrive("csd-02")]
    sync = {"straggler_factor": 2.0, "micro_batch": micro_batch, "clip_norm": clip_norm}
    run = run_of(*drives, records=36, batch_size=6, sync=sync)
    weights = NetEvaluator().initial_weights()
    (record,) = await run.run()
    late = [step.step for step in record.steps if step.late]
    assert late[0] == 1
    for step in record.steps:
        assert step.late in ([], ["csd-01"])
        assert sum(part.weight for part in step.devices) == pytest.approx(1.0)
        if micro_batch is None:
            groups = [drive.by_step[step.step] for drive in drives if drive.device in names_of(step)]
            weights = whole_step(weights, groups, step.learning_rate)
    if micro_batch is None:
        for name, array in run.training.weights.items():
            np.testing.assert_allclose(array, weights[name], rtol=1e-10, atol=1e-10, err_msg=name)
    used = {r for d in drives for at, dealt in d.by_step.items() if d.slowdown == 1 or at not in late for r in dealt}
    assert used == set(range(36))  # all were in a gradient that counted


def names_of(step: StepRecord) -> set[str]:
    return {part.device for part in step.devices}


@pytest.mark.slow
async def test_a_step_that_does_not_wait_for_a_late_drive_is_charged_as_if_that_had_ended_at_the_limit() -> None:
    def run(slowdown: float, straggler_factor: float) -> SyncRun:
        drives = CutDrive("csd-00"), CutDrive("csd-01", slowdown=slowdown), CutDrive("csd-02")
        return run_of(*drives, records=18, batch_size=6, sync={"straggler_factor": straggler_factor}, modelled=False)

    slow, slower, patient = run(3.0, 2.0), run(30.0, 2.0), run(30.0, 100.0)
    first, second, third = [(await each.run())[0].steps[0] for each in (slow, slower, patient)]
    assert first.late == second.late == ["csd-01"]
    assert third.late == []
    # However late it is: it is given up at the same moment, but for how its seconds are shared out over the passes.
    assert second.array_seconds == pytest.approx(first.array_seconds, rel=1e-6)
    assert third.array_seconds > 5 * second.array_seconds
    assert first.placement is not None
    assert third.placement is not None
    assert first.placement.tail_seconds == pytest.approx(third.placement.tail_seconds * 2 / 3)


class Half(CutDrive):
    """Ends its stream when the first of its front's gradients has left."""

    def finish(self, task: Step) -> Iterator[Answer]:
        yield from until_first_tensor(super().finish(task), task.step)


class HalfWhole(StepDrive):
    """The same, of a model that is whole."""

    def step_on(self, task: Step, weights: Mapping[str, Array]) -> Iterator[Answer]:
        yield from until_first_tensor(super().step_on(task, weights), task.step)


def until_first_tensor(answers: Iterator[Answer], step: int) -> Iterator[Answer]:
    for answer in answers:
        yield answer
        if step == 2 and isinstance(answer, Slice):
            raise Cut


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("cut", [True, False])
async def test_when_all_are_lost_with_a_part_of_their_gradients_that_is_what_is_said(
    cut: bool, clip_norm: float | None
) -> None:
    """An optimiser that needs all gradients steps none of them."""
    sync = {"clip_norm": clip_norm}
    run = run_of(Half("csd-00"), records=12, sync=sync) if cut else SyncRun(HalfWhole("csd-00"), records=12, sync=sync)
    before: dict[str, Array] = {}
    add = run.training._stepper.finish

    async def finish(step: Underway) -> StepResult:
        before.update({name: array.copy() for name, array in run.training.weights.items()})
        return await add(step)

    run.training._stepper.finish = finish  # type: ignore[method-assign]
    with pytest.raises(DeviceLost):
        async with asyncio.timeout(30):
            await run.run()
    trained = run.training._stepper.model.structure.trained
    same = [np.array_equal(run.training.weights[name], before[name]) for name in trained]
    assert all(same) or clip_norm is None


@pytest.mark.slow
async def test_probes_of_a_parked_drive_leave_the_steps_of_the_others_alone() -> None:
    drives = [CutDrive("csd-00"), CutDrive("csd-01"), CutDrive("csd-02")]
    run = run_of(
        *drives,
        records=20_000,
        tuner="hypertune",
        sync={"round_steps": 60, "tuning": {"slow_batch": 32}, "learning_rate_rule": "constant"},
        disturb=[{"device": "csd-01", "at_step": 5, "weight": 10_000, "steps": 15}],
        learning_rate=0.1,
    )
    weights = NetEvaluator().initial_weights()
    (record,) = await run.run()
    parked, back = record.retunes
    assert (parked.after["csd-01"], back.before["csd-01"]) == (0, 0)
    probed = [step for step in record.steps if step.step in drives[1].by_step and "csd-01" not in names_of(step)]
    assert len(probed) > 2
    assert not run.told(EventKind.FAILED) + run.told(EventKind.LOST)
    for step in record.steps:
        groups = [drive.by_step[step.step] for drive in drives if drive.device in names_of(step)]
        weights = whole_step(weights, groups, step.learning_rate)
    for name, array in run.training.weights.items():
        np.testing.assert_allclose(array, weights[name], rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["SGD", "Adam"])
async def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(optimiser: str) -> None:
    job = {
        "rounds": 4,
        "momentum": 0.9,
        "learning_rate": 0.1,
        "tuner": "hypertune",
        "sync": {"round_steps": 5, "optimiser": {"name": optimiser}, "tuning": {"slow_batch": 8}},
        "disturb": [{"device": "csd-01", "at_step": 4, "weight": 100, "steps": 10}],
    }

    def make() -> SyncRun:
        return run_of(CutDrive("csd-00"), CutDrive("csd-01"), records=333, **job)

    await assert_resumes(make)


@pytest.mark.slow
async def test_a_drive_that_comes_back_takes_part_from_the_next_step_on() -> None:
    run = run_of(CutDrive("csd-00"), Dying("csd-01", 2, "between"), records=60, batch_size=3, existing={"csd-01"})
    back = CutDrive("csd-01")
    add = run.training._stepper.finish

    async def finish(step: Underway) -> StepResult:
        if step.number == 4:
            run.fleet.join(back)
        return await add(step)

    run.training._stepper.finish = finish  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        (record,) = await run.run()
    assert len(run.told(EventKind.LOST)) == 1
    took = {step.step: names_of(step) for step in record.steps}
    assert [took[number] for number in (2, 3)] == [{"csd-00"}] * 2
    assert {"csd-00", "csd-01"} in [took[number] for number in took if number > 4]
    for step in record.steps:
        if step.step == 2:
            continue
        groups = [
            drive.by_step[step.step]
            for drive in (run.drives[0], run.drives[1] if step.step == 1 else back)
            if drive.device in took[step.step]
        ]
        assert step.samples == sum(map(len, groups))
    assert all(np.isfinite(array).all() for array in run.training.weights.values())

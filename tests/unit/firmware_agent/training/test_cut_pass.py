"""A step across the cut with drives' real workers: frames, labels, random draws; against one process alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_lab.bench.training.gradient_reference import ReferenceParticipant, reference_step
from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import DeviceFailed, ProtocolError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Job, Slice
from firmware_agent.common.frames.step_frames import ActivationGradients, Step, Stepped
from firmware_agent.common.models import build_model
from firmware_agent.common.shard import Shard
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.slices import Array, cut_slices
from firmware_agent.common.split.activations import gradient_specs
from firmware_agent.common.split.cutting import cut_model
from firmware_agent.common.weights import state_arrays, tied_names, trained_names
from firmware_agent.common.wire import AnyFrame, unpack
from firmware_agent.training import loaded_job
from firmware_agent.training.cut_pass import Coming, CrossedPart, CutReply, ExpectedReply
from firmware_agent.training.device_steps import DeviceSteps
from firmware_agent.training.gradient_step import GivenGradients, GradientWorker
from firmware_agent.training.loaded_job import LoadedJob
from firmware_agent.training.step_sender import take_gradient
from host.core.tensor_sums import TensorContribution, combine
from host.training.sync.exchange.activation_exchange import ActivationExchange, ActivationReceiver
from host.training.sync.exchange.step_extension import Answer, Reply, part_sizes
from host.training.sync.server_model.activation_types import ActivationBatch, HandOver
from host.training.sync.server_model.server_model import ServerModel
from tests.support.device_steps import KeepingSession
from tests.support.device_steps import compute as compute_step
from tests.support.examples import examples
from tests.support.fakes import random_shard
from tests.unit.firmware_agent.training.test_trainer import ticks

SAMPLES, SEED = 30, 5
# Draws and normalises on both sides of any cut, and shares what it computes early with what it does late.
SOURCE = """
import torch
from torch import nn
class build(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.third = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.last = nn.Dropout(0.4), nn.Linear(256, 10)
    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.first(x))))
        y = nn.functional.dropout(torch.tanh(self.third(self.second(x))), 0.3, self.training)
        return self.last(self.drop((x + y).view(x.size(0), -1)))
"""
LAYERS = ("norm", "second", "third", "last")


async def reply_of(answer: Answer) -> Reply:
    return await answer()


JOB = Job("net.py:build", {}, SOURCE, 1 / 16, SEED, 0.05, 0.9, 8, precision="float64")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), SAMPLES)


def worker(shard: Shard, device: str, layer: str, batch_norm: str = "device") -> GradientWorker:
    job = msgspec.structs.replace(JOB, cut=layer, batch_norm=batch_norm)
    watch = Stopwatch(ticks().__next__)
    return GradientWorker(job, LoadedJob(job, shard, watch), device, watch)


def answered(frames: Iterator[AnyFrame], wanted: ExpectedReply) -> CutReply:
    """What a drive takes of the host's answer."""
    reply = Coming(wanted)
    while not reply.done:
        reply.take(next(frames))
    return reply.answer()


def cut_step(
    shard: Shard, layer: str, groups: Sequence[list[int]], micro_batch: int, number: int, batch_norm: str
) -> tuple[dict[str, Array], float]:
    """Return gradients, buffers and mean loss of a step of real workers and the host's part."""
    torch.manual_seed(SEED)
    model = build_model(ShippedCode(JOB.model, SOURCE)).double().train()
    weights = {name: array.copy() for name, array in state_arrays(model).items()}
    images = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    tail = ServerModel(
        cut_model(model, images, layer), weights, trained_names(model), tied_names(model), batch_norm, SEED
    )
    names = [f"csd-0{place}" for place in range(len(groups))]
    parts = {name: part_sizes(len(records), micro_batch) for name, records in zip(names, groups, strict=True)}

    async def visit() -> tuple[ActivationExchange, list[tuple[dict[str, Array], float]]]:
        crossings, loop = ActivationExchange(tail, number, parts), asyncio.get_running_loop()
        turn = threading.Lock()  # drives are processes, each with a generator of its own: here they take turns

        def compute(name: str, records: list[int]) -> tuple[dict[str, Array], float]:
            hand = crossings.open(name)

            def cross(handed: CrossedPart, wanted: ExpectedReply) -> CutReply:
                pieces = cut_slices(number, handed.arrays)
                taken = [hand.take(frame) for frame in (handed.announced, *pieces)]
                answer = taken[-1]
                assert answer is not None
                assert not any(taken[:-1])
                turn.release()
                try:
                    reply = asyncio.run_coroutine_threadsafe(reply_of(answer), loop).result(30)
                finally:
                    turn.acquire()
                answers = iter([frame for message in reply.messages(number) for frame in unpack(message)])
                return answered(answers, wanted)

            with turn:
                drive = worker(shard, name, layer, batch_norm)
            assert list(drive.model.state_dict()) == list(tail.split.front)
            with turn:
                done = compute_step(drive, Step(number, np.array(records, "<u4").tobytes(), micro_batch), cross=cross)
                state = state_arrays(drive.model)
                gradients = {trained: take_gradient(drive.parameter(trained)) for trained in drive.trained}
                return gradients | {buffer: state[buffer] for buffer in drive.buffers}, done.loss

        jobs = [asyncio.to_thread(compute, *each) for each in zip(names, groups, strict=True)]
        return crossings, list(await asyncio.gather(*jobs))

    crossings, done = asyncio.run(visit())
    total: dict[str, Array] = {}
    for name in done[0][0]:
        each = [TensorContribution(len(r), arrays[name]) for r, (arrays, _) in zip(groups, done, strict=True)]
        total[name] = combine(name, each)
    loss = sum(loss * len(r) for r, (_, loss) in zip(groups, done, strict=True)) / sum(map(len, groups))
    return total | crossings.passing.gradients() | crossings.passing.buffers(), loss


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(25))
@given(data=st.data(), layer=st.sampled_from(LAYERS), number=st.integers(1, 99))
def test_a_step_is_that_of_one_process_whatever_cut_batches_and_drives(
    shard: Shard, data: st.DataObject, layer: str, number: int
) -> None:
    records = st.lists(st.integers(0, SAMPLES - 1), min_size=2, max_size=8)
    groups = data.draw(st.lists(records, min_size=1, max_size=3))
    batch_norm = data.draw(st.sampled_from(["device", "frozen"]))
    got, _ = cut_step(shard, layer, groups, 100, number, batch_norm)
    torch.manual_seed(SEED)
    model = build_model(ShippedCode(JOB.model, SOURCE)).double()
    images = [torch.from_numpy(shard.fields["image"][r]).double() * JOB.input_scale for r in groups]
    labels = [torch.from_numpy(shard.fields["label"][r]) for r in groups]
    whole = [
        ReferenceParticipant(f"csd-0{place}", *each, (len(each[1]),))
        for place, each in enumerate(zip(images, labels, strict=True))
    ]
    want = reference_step(model, batch_norm, whole, SEED, number)
    for name, array in got.items():
        np.testing.assert_allclose(array, want[name], rtol=1e-10, atol=1e-10, err_msg=name)
    missing = want.keys() - got.keys()
    assert all("running" in name or "tracked" in name for name in missing)
    assert not missing or batch_norm == "frozen"


@pytest.mark.parametrize("batch_norm", ["device", "frozen"])
@pytest.mark.parametrize("layer", LAYERS)
def test_in_parts_a_step_is_that_of_one_process_wherever_it_draws(shard: Shard, layer: str, batch_norm: str) -> None:
    """Behind the host's part of a part its draws go on in the drive's part of the next."""
    groups = [[1, 2, 3, 4, 5, 6, 7]]  # one drive: here they share a generator, and would see each other's draws
    got, _ = cut_step(shard, layer, groups, 3, 3, batch_norm)
    torch.manual_seed(SEED)
    model = build_model(ShippedCode(JOB.model, SOURCE)).double()
    whole = [
        ReferenceParticipant(
            f"csd-0{place}",
            torch.from_numpy(shard.fields["image"][r]).double() * JOB.input_scale,
            torch.from_numpy(shard.fields["label"][r]),
            part_sizes(len(r), 3),
        )
        for place, r in enumerate(groups)
    ]
    want = reference_step(model, batch_norm, whole, SEED, 3)
    for name, array in got.items():
        np.testing.assert_allclose(array, want[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow
def test_a_step_repeats_to_the_bit(shard: Shard) -> None:
    one, other = (cut_step(shard, "second", [[1, 2, 3], [4, 5]], 100, 7, "device") for _ in range(2))
    assert one[1] == other[1]
    assert all(array.tobytes() == other[0][name].tobytes() for name, array in one[0].items())


def test_a_front_that_is_not_trained_gets_no_gradient(shard: Shard) -> None:
    source = SOURCE.replace(
        "nn.BatchNorm2d(4)\n        self.second",
        "nn.BatchNorm2d(4)\n        self.first.requires_grad_(False)\n        self.second",
    )
    job = msgspec.structs.replace(JOB, cut="norm", source=source)
    watch = Stopwatch(ticks().__next__)
    drive = GradientWorker(job, LoadedJob(job, shard, watch), "csd-00", watch)

    def cross(handed: CrossedPart, wanted: ExpectedReply) -> CutReply:
        empty = iter([ActivationGradients(wanted.step, wanted.part, 1.5, [])])
        return answered(empty, wanted)

    done = compute_step(drive, Step(1, np.array([1, 2], "<u4").tobytes(), 10), cross=cross)
    assert done.loss == 1.5


WANTED = ExpectedReply(3, 0, [])


@pytest.mark.parametrize(
    ("frame", "error", "reason"),
    [
        (Stepped(3, 1, 0.0, PhaseSeconds(), 0), ProtocolError, "a Stepped where the gradients of part 0 of step 3"),
        (ActivationGradients(3, 1, 0.0, []), ProtocolError, "of part 0 of step 3 were due"),
        (ActivationGradients(3, 0, 0.0, [], "no room"), DeviceFailed, "the host's part of the model failed: no room"),
    ],
)
def test_an_answer_that_is_none_is_refused(frame: AnyFrame, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        answered(iter([frame]), WANTED)


def test_a_front_that_is_not_trained_goes_on_behind_what_the_host_has_drawn(shard: Shard) -> None:
    source = SOURCE.replace(
        "nn.BatchNorm2d(4)\n        self.second",
        "nn.BatchNorm2d(4)\n        for p in (*self.first.parameters(), *self.norm.parameters()):\n"
        "            p.requires_grad_(False)\n        self.second",
        1,
    )
    job = msgspec.structs.replace(JOB, cut="second", source=source)
    watch = Stopwatch(ticks().__next__)
    drive = GradientWorker(job, LoadedJob(job, shard, watch), "csd-00", watch)
    behind, seen = torch.Generator().manual_seed(99).get_state(), list[Array]()

    def cross(handed: CrossedPart, wanted: ExpectedReply) -> CutReply:
        seen.append(handed.arrays["random"])
        specs = [spec for spec in wanted.specs if spec.name == "random"]
        assert len(specs) == 1 - wanted.part
        pieces = cut_slices(wanted.step, {"random": behind.numpy()}) if specs else []
        answer = iter([ActivationGradients(wanted.step, wanted.part, 1.5, specs), *pieces])
        return answered(answer, wanted)

    compute_step(drive, Step(1, np.array([1, 2, 3, 4], "<u4").tobytes(), 2), cross=cross)
    torch.set_rng_state(behind)
    torch.nn.functional.dropout(torch.ones(2, 4, 8, 8, dtype=torch.float64), 0.4)
    assert np.array_equal(seen[1], torch.get_rng_state().numpy())

    def wrong(handed: CrossedPart, wanted: ExpectedReply) -> CutReply:
        return CutReply(1.5, {"random": np.arange(len(behind), dtype=np.uint8)})

    with pytest.raises(ProtocolError, match="no state of the random generator"):
        compute_step(drive, Step(1, np.array([1, 2, 3, 4], "<u4").tobytes(), 2), cross=wrong)


def test_a_missing_gradient_is_refused(shard: Shard) -> None:
    drive = worker(shard, "csd-00", "second")

    def cross(handed: CrossedPart, wanted: ExpectedReply) -> CutReply:
        return CutReply(1.0, {})

    with pytest.raises(ProtocolError, match="sent no gradient of value 0"):
        compute_step(drive, Step(1, np.array([1, 2], "<u4").tobytes(), 10), cross=cross)


async def test_what_crosses_is_encoded_once_and_charged(shard: Shard) -> None:
    watch = Stopwatch(ticks().__next__)
    job = msgspec.structs.replace(JOB, cut="second")
    loaded = LoadedJob(job, shard, watch)
    assert loaded.point is not None
    crossing = loaded.point.crossing
    specs = gradient_specs(crossing, 2)
    zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs}
    far = KeepingSession([ActivationGradients(1, 0, 1.0, specs), *cut_slices(1, zeros)])
    steps = DeviceSteps(far.session(), job, GradientWorker(job, loaded, "csd-00", watch), watch)
    steps.compute(Step(1, np.array([1, 2], "<u4").tobytes(), 10))
    seconds = watch.take()
    assert seconds.encode == 2 / 8  # of what crosses, and of the gradients
    assert seconds.forward > 0
    assert {piece.tensor for piece in far.sent if isinstance(piece, Slice)} == {"0", "labels", "random"}

    async def add(part: int, batch: ActivationBatch) -> DeviceFailed:
        return DeviceFailed(f"part {part} of {len(batch.labels)} records")

    hand = ActivationReceiver(HandOver(crossing, True, 10), 1, "csd-00", (2,), add)
    answers = [hand.take(frame) for frame in far.sent]
    assert not any(answers[:-1])
    assert answers[-1] is not None
    reply = await answers[-1]()
    assert isinstance(reply.announced, ActivationGradients)
    assert reply.announced.error == "part 0 of 2 records"


def test_a_front_of_a_model_too_large_takes_memory_for_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 5000))

    images = torch.zeros(1, 4)
    for free, lean in ((1 << 40, False), (20_000, True)):
        monkeypatch.setattr(loaded_job, "free_bytes", lambda free=free: free)
        cut = loaded_job.build_front(build, images, "2")
        assert [p.device.type for p in cut.front.parameters()] == ["cpu", "cpu"]
        assert {p.device.type for p in cut.tail.parameters()} == {"meta" if lean else "cpu"}
        assert cut.front(images)[0].shape == (1, 6)


def test_a_model_that_cannot_be_built_without_memory_is_built_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.register_buffer("scale", torch.arange(4.0), persistent=False)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(values) * self.scale)  # type: ignore[no-any-return]

    monkeypatch.setattr(loaded_job, "free_bytes", lambda: 1)
    cut = loaded_job.build_front(Odd, torch.ones(1, 4), "second")
    front = dict(cut.front.named_buffers())
    assert torch.equal(front["scale"], torch.arange(4.0))
    assert "scale" not in cut.front.state_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_given_gradients_are_carried_on_as_torch_carries_them_bit_for_bit(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(SEED)
    weights = torch.randn(5, 3, dtype=dtype, generator=generator, requires_grad=True)
    records, *given = (torch.randn(4, n, dtype=dtype, generator=generator) for n in (5, 3, 3))

    def front() -> list[torch.Tensor]:  # two values, of which one is made of the other
        first = (records @ weights).relu()
        return [first, first.sigmoid() * 2]

    torch.autograd.backward(front(), given)
    assert weights.grad is not None
    expected, weights.grad = weights.grad, None
    GivenGradients.apply(given, *front()).backward()
    assert torch.equal(weights.grad, expected)

"""A step as a drive computes it: the gradient is that of one batch, whatever the parts that it was computed in."""

import copy
import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import DeviceFailed, DeviceLost, ProtocolError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.session_frames import Job, Slice, Tensors
from firmware_agent.common.frames.step_frames import OwnRecords, Reduce, Step, Stepped
from firmware_agent.common.shard import Shard
from firmware_agent.common.slices import Array, Assembler, tensor_specs
from firmware_agent.common.split.activations import device_number, epoch_order
from firmware_agent.common.weights import buffer_names, state_arrays, tied_names, trained_names
from firmware_agent.common.wire import AnyFrame
from firmware_agent.local_dataset import describe
from firmware_agent.training.device_steps import DeviceSteps
from firmware_agent.training.gradient_step import GradientWorker, LocalStep
from firmware_agent.training.loaded_job import LoadedJob
from tests.support.device_steps import KeepingSession, compute
from tests.support.examples import examples
from tests.support.fakes import random_shard
from tests.unit.firmware_agent.training.test_trainer import ticks

SAMPLES = 30
JOB = Job("net.py:build", {}, None, 1 / 16, 3, 0.05, 0.9, 8, precision="float64")
PLAIN = """
from torch import nn
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 10))
"""
NORMED = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5),
                         nn.Linear(108, 10))
"""
# A branch that no record comes through, a frozen parameter, a tied one.
ODD = """
from torch import nn
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.idle = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(2, 2)
        self.b.weight = self.a.weight
        self.a.bias.requires_grad_(False)
    def forward(self, x):
        return self.b(self.a(x.flatten(1)).tanh())
"""
BROKEN = """
from torch import nn
class build(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
    def forward(self, x):
        raise ValueError("no such thing")
"""


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), SAMPLES)


class Drive:
    """A worker, and the model that it works on."""

    def __init__(self, shard: Shard, source: str = PLAIN, device: str = "\1", **changes: Any) -> None:
        job = msgspec.structs.replace(JOB, source=source, **changes)
        self.watch = Stopwatch(ticks().__next__)
        loaded = LoadedJob(job, shard, self.watch)
        self.model = loaded.model
        self.worker = GradientWorker(job, loaded, device, self.watch)
        self.far, self.seconds = KeepingSession(), PhaseSeconds()
        self.steps = DeviceSteps(self.far.session(), job, self.worker, self.watch)

    def step(self, records: list[int], micro_batch: int = 100, number: int = 1) -> dict[str, Array]:
        """The answer's arrays."""
        done = self.steps.compute(task(records, micro_batch, number))
        self.seconds = self.watch.take()
        return self.sent(number, done)

    def sent(self, number: int, done: LocalStep) -> dict[str, Array]:
        """What the step has sent."""
        self.steps.finish(Stepped(number, done.samples, done.loss, self.seconds, done.read_bytes))
        *frames, _ = self.far.sent
        self.far.sent = []
        return arrived(frames)


def task(records: list[int], micro_batch: int = 100, number: int = 1) -> Step:
    return Step(number, np.array(records, "<u4").tobytes(), micro_batch)


def arrived(frames: list[AnyFrame]) -> dict[str, Array]:
    announced, *pieces = frames
    assert isinstance(announced, Tensors)
    assembler = Assembler(announced.exchange, announced.specs)
    for piece in pieces:
        assert isinstance(piece, Slice)
        assembler.add(piece)
    return assembler.arrays()


def plain_gradients(model: nn.Module, shard: Shard, records: list[int]) -> dict[str, Array]:
    """By torch alone, of all records at once."""
    images = torch.from_numpy(shard.fields["image"][records]).double() * JOB.input_scale
    loss = nn.functional.cross_entropy(model(images), torch.from_numpy(shard.fields["label"][records]))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return dict(zip(trained, (g.numpy() for g in torch.autograd.grad(loss, list(trained.values()))), strict=True))


@settings(deadline=None, max_examples=examples(40))
@given(records=st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=20), micro_batch=st.integers(1, 25))
def test_the_gradient_is_that_of_the_mean_loss_whatever_the_micro_batch(
    shard: Shard, records: list[int], micro_batch: int
) -> None:
    drive = Drive(shard)
    got = drive.step(records, micro_batch)
    want = plain_gradients(drive.model, shard, records)
    assert list(got) == list(want) == trained_names(drive.model)
    for name, gradient in want.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-11, atol=1e-14)


def test_what_a_step_reports(shard: Shard) -> None:
    drive, seen = Drive(shard), []
    drive.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    done = compute(drive.worker, task([3, 1, 4, 1, 5, 9, 2, 6, 5], 4))
    assert seen == [3, 3, 3]  # no part of a single record is left over
    assert done.samples == 9
    assert done.read_bytes == 9 * (64 + 8)
    images = torch.from_numpy(shard.fields["image"][[3, 1, 4, 1, 5, 9, 2, 6, 5]]).double() * JOB.input_scale
    labels = torch.from_numpy(shard.fields["label"][[3, 1, 4, 1, 5, 9, 2, 6, 5]])
    assert done.loss == pytest.approx(nn.functional.cross_entropy(drive.model(images), labels).item(), rel=1e-12)


def test_seconds_are_charged_to_their_phases_and_none_to_an_update(shard: Shard) -> None:
    drive = Drive(shard)
    drive.step([1, 2, 3, 4], 2)
    assert drive.seconds == PhaseSeconds(forward=0.25, backward=0.25, update=0.0, encode=0.125)


def test_dropout_masks_depend_on_seed_device_and_step_alone(shard: Shard) -> None:
    def first(device: int = 1, seed: int = 3, number: int = 1) -> bytes:
        drive = Drive(shard, NORMED, chr(device), seed=seed)
        state = Drive(shard, NORMED).model.state_dict()
        drive.model.load_state_dict(state)
        torch.rand(device + number)  # what else draws must not matter
        return drive.step([1, 2, 3, 4], number=number)["5.weight"].tobytes()

    assert first() == first()
    assert len({first(), first(device=2), first(seed=4), first(number=2)}) == 4


def test_a_step_does_not_depend_on_the_steps_before_it(shard: Shard) -> None:
    stayed, rejoined = Drive(shard, NORMED), Drive(shard, NORMED)
    start = copy.deepcopy(stayed.model.state_dict())
    stayed.step([5, 6, 7])
    compute(stayed.worker, task([1, 2]))  # and its answer never left
    stayed.model.load_state_dict(start)
    one, other = stayed.step([1, 2, 3], number=2), rejoined.step([1, 2, 3], number=2)
    assert {n: a.tobytes() for n, a in one.items()} == {n: a.tobytes() for n, a in other.items()}


def test_buffers_come_back_as_the_step_left_them(shard: Shard) -> None:
    drive = Drive(shard, NORMED)
    got = drive.step([1, 2, 3, 4], 2)
    assert list(got) == [*trained_names(drive.model), *buffer_names(drive.model)]
    assert got["1.num_batches_tracked"] == 2
    for name in buffer_names(drive.model):
        np.testing.assert_array_equal(got[name], state_arrays(drive.model)[name])
    assert np.abs(got["1.running_mean"]).max() > 0


def test_tied_frozen_and_idle_parameters(shard: Shard) -> None:
    drive = Drive(shard, ODD.replace("class Odd", "class build"))
    got = drive.step([1, 2])
    assert list(got) == ["a.weight", "b.bias", "idle.weight", "idle.bias"] == trained_names(drive.model)
    assert tied_names(drive.model) == {"b.weight": "a.weight"}
    assert not got["idle.weight"].any()
    assert got["idle.weight"].shape == (2, 2)
    assert got["a.weight"].any()


def test_gradients_are_gone_once_they_are_encoded(shard: Shard) -> None:
    drive = Drive(shard)
    drive.step([1, 2])
    assert all(p.grad is None for p in drive.model.parameters())


def test_single_precision_is_the_default(shard: Shard) -> None:
    drive = Drive(shard, NORMED, precision="float32")
    assert {a.dtype.str for a in drive.step([1, 2]).values()} == {"<f4", "<i8"}
    assert {a.dtype.str for a in Drive(shard, NORMED).step([1, 2]).values()} == {"<f8", "<i8"}


@pytest.mark.parametrize("records", [[SAMPLES], [0, 1, 2**32 - 1]])
def test_records_that_are_not_this_drives_are_refused_before_anything_is_computed(
    shard: Shard, records: list[int]
) -> None:
    drive = Drive(shard)
    drive.model.register_forward_pre_hook(lambda *_: pytest.fail("it computed"))
    with pytest.raises(DeviceFailed, match=rf"names record {max(records)}, but this drive holds {SAMPLES}"):
        compute(drive.worker, task(records))


def test_half_an_index_is_no_index(shard: Shard) -> None:
    with pytest.raises(ProtocolError, match="no whole indices"):
        compute(Drive(shard).worker, Step(1, b"12345", 1))


@settings(deadline=None, max_examples=examples(20))
@given(data=st.data(), epoch=st.integers(1, 5), device=st.sampled_from(["csd-00", "csd-01"]))
def test_a_drive_draws_its_own_records_in_an_order_of_seed_drive_and_epoch(
    shard: Shard, data: st.DataObject, epoch: int, device: str
) -> None:
    ends = sorted(data.draw(st.sets(st.integers(0, SAMPLES), min_size=2, max_size=6)))
    runs = [(begin, end - begin) for begin, end in zip(ends[::2], ends[1::2], strict=False)]
    order = epoch_order(JOB.seed, device_number(device), epoch, 0, SAMPLES).tolist()
    records = [order[place] for begin, count in runs for place in range(begin, begin + count)]
    drive = Drive(shard, device=device)
    for number in (1, 2):  # the order is kept
        drawn = drive.sent(number, drive.steps.compute(Step(number, OwnRecords(epoch, runs), 100)))
    given = Drive(shard, device=device).step(records)
    for name, gradient in given.items():
        np.testing.assert_array_equal(drawn[name], gradient)


def test_the_host_cannot_name_a_record_that_lies_there_in_place(shard: Shard) -> None:
    own = dataclasses.replace(shard, holding=describe(shard.manifest))
    with pytest.raises(ProtocolError, match="names single records"):
        compute(Drive(own).worker, task([1, 2]))
    compute(Drive(own).worker, Step(1, OwnRecords(1, [(1, 2)]), 100))


@pytest.mark.parametrize("runs", [[(SAMPLES, 1)], [(0, 3), (SAMPLES - 1, 2)], [(0, SAMPLES)] * 2500])
def test_more_than_lies_there_or_fits_into_a_step_is_not_drawn(shard: Shard, runs: list[tuple[int, int]]) -> None:
    drive = Drive(shard)
    drive.model.register_forward_pre_hook(lambda *_: pytest.fail("it computed"))
    with pytest.raises(ProtocolError, match=f"or beyond the {SAMPLES} that lie here"):
        compute(drive.worker, Step(1, OwnRecords(1, runs), 100))


def test_frozen_statistics_stay_and_no_buffer_is_sent(shard: Shard) -> None:
    drive = Drive(shard, NORMED, batch_norm="frozen")
    before = copy.deepcopy(drive.model.state_dict())
    got = drive.step([1, 2, 3], 1)  # a batch of one is no trouble here
    assert list(got) == trained_names(drive.model)
    assert got["1.weight"].any()
    assert all(torch.equal(tensor, before[name]) for name, tensor in drive.model.state_dict().items())


def test_synchronised_with_itself_alone_is_the_devices_own(shard: Shard) -> None:
    plain, alone = Drive(shard, NORMED), Drive(shard, NORMED, batch_norm="synchronised")
    want, got, frames = plain.step([1, 2, 3]), alone.step([1, 2, 3]), alone.far.sums
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-10, atol=1e-13)
    assert [(frame.step, frame.index, len(frame.values)) for frame in frames] == [(1, 0, 8 * 7), (1, 1, 8 * 6)]


def test_an_exchange_costs_the_drive_no_seconds(shard: Shard) -> None:
    """The clock goes on by an eighth of a second per look: each exchange adds one lap, and the wait nothing."""
    drive = Drive(shard, NORMED, batch_norm="synchronised")

    def meet(frame: Reduce) -> bytes:
        for _ in range(1000):
            drive.watch.now()
        return frame.values

    compute(drive.worker, task([1, 2, 3]), meet)
    assert drive.watch.take() == PhaseSeconds(forward=0.25, backward=0.25)


def test_a_step_that_failed_in_an_exchange_leaves_nothing_behind(shard: Shard) -> None:
    drive = Drive(shard, NORMED, batch_norm="synchronised")

    def cut(_: Reduce) -> bytes:
        raise DeviceLost("cut")

    with pytest.raises(DeviceLost, match="cut"):
        compute(drive.worker, task([1, 2, 3]), cut)
    compute(drive.worker, task([1, 2, 3]))  # alone again


def test_a_single_value_per_channel_is_explained(shard: Shard) -> None:
    vector = "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64))\n"
    with pytest.raises(DeviceFailed, match=r"batch of 3 in parts of 1 .* batch_norm: synchronised or frozen"):
        compute(Drive(shard, vector).worker, task([1, 2, 3], 1))
    with pytest.raises(ValueError, match="no such thing"):
        compute(Drive(shard, BROKEN).worker, task([1]))


def test_synchronised_normalisation_needs_the_whole_batch_at_once(shard: Shard) -> None:
    with pytest.raises(DeviceFailed, match="3 records in parts of 2"):
        compute(Drive(shard, NORMED, batch_norm="synchronised").worker, task([1, 2, 3], 2))


def test_of_a_step_that_is_only_timed_nothing_leaves_but_the_report_and_it_needs_no_weights(shard: Shard) -> None:
    drive = Drive(shard)
    usual = drive.step([1, 2, 3])
    timed = msgspec.structs.replace(task([1, 2, 3], number=2), timed="whole")
    drive.steps.load(timed)
    done = drive.steps.compute(timed)
    report = Stepped(2, done.samples, done.loss, drive.watch.take(), done.read_bytes)
    drive.steps.finish(report)
    assert report.seconds.encode > 0
    assert drive.far.sent == [report]
    drive.far.sent = []
    again = drive.step([1, 2, 3], number=3)
    assert {name: value.tolist() for name, value in again.items()} == {n: v.tolist() for n, v in usual.items()}
    with pytest.raises(ProtocolError, match="has not announced"):
        drive.steps.load(task([1], number=4))
    drive.steps.take(Tensors(5, tensor_specs(state_arrays(drive.model))))
    with pytest.raises(ProtocolError, match="missing"):
        drive.steps.load(msgspec.structs.replace(timed, step=5))


@pytest.mark.parametrize("batch_norm", ["device", "synchronised"])
def test_of_a_forward_pass_that_is_timed_nothing_else_is_computed_or_exchanged(shard: Shard, batch_norm: str) -> None:
    drive = Drive(shard, NORMED, batch_norm=batch_norm)
    timed = msgspec.structs.replace(task([1, 2, 3]), timed="forward")
    drive.steps.load(timed)
    done = drive.steps.compute(timed)
    report = Stepped(1, done.samples, done.loss, drive.watch.take(), done.read_bytes)
    drive.steps.finish(report)
    assert drive.far.sent == [report]
    assert report.samples == 3
    assert report.seconds == PhaseSeconds(forward=report.seconds.forward)
    assert report.seconds.forward > 0
    assert all(parameter.grad is None for parameter in drive.model.parameters())

import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from csd_emu.profiles.calibration import median_step
from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.measure_frames import Measure, PhaseMark
from firmware_agent.common.frames.session_frames import Code, Job, Slice, Tensors, Train
from firmware_agent.common.shard import Shard, open_shard, write_shard
from firmware_agent.common.slices import Array, Assembler
from firmware_agent.common.split.activations import epoch_order
from firmware_agent.common.weights import load_arrays, state_arrays
from firmware_agent.common.wire import decode
from firmware_agent.training.trainer import Trainer
from tests.support.fakes import random_shard

SAMPLES = 50
JOB = Job("digits_cnn", {}, None, 1 / 16, 3, 0.05, 0.9, 8)

PICKY = """
from torch import nn

class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Linear(64, 10)

    def forward(self, images):
        if not self.training:
            raise ValueError("for training alone")
        return self.only(images.flatten(1))
"""


def ticks() -> Iterator[float]:
    """A clock that advances by an eighth of a second whenever it is read."""
    seconds = 0.0
    while True:
        seconds += 0.125
        yield seconds


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), SAMPLES)


def trainer(shard: Shard, device: int = 1, **changes: Any) -> Trainer:
    fields = {name: getattr(JOB, name) for name in Job.__struct_fields__}
    return Trainer(Job(**fields | changes), shard, device, Stopwatch(ticks().__next__))


def test_whole_numbers_that_a_model_cannot_look_up_are_told(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard.tar", "tokens", {"tokens": np.tile(np.arange(9), (SAMPLES, 1))})
    source = "from torch import nn\ndef net():\n    return nn.Embedding(8, 9)\n"
    job = {"model": "net.py:net", "source": source, "input_fields": ["tokens"], "loss": Code("next_token")}
    told = (
        r"^the model failed: IndexError\('index out of range in self'\); "
        r"if in an embedding, data: tokens goes from 0 to 8 \(in this batch\): an embedding needs 9 rows "
    )
    with pytest.raises(ModelError, match=told):
        trainer(open_shard(tmp_path / "shard.tar"), **job).train(Train(1, 1))


def test_an_index_error_of_the_loss_is_not_laid_on_the_data(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard.tar", "tokens", {"tokens": np.tile(np.arange(9), (SAMPLES, 1))})
    source = "from torch import nn\ndef net():\n    return nn.Embedding(9, 9)\ndef loss(outputs, batch):\n    [][1]\n"
    job = {"model": "net.py:net", "source": source, "input_fields": ["tokens"], "loss": Code("net.py:loss", source)}
    with pytest.raises(IndexError, match=r"^list index out of range$"):
        trainer(open_shard(tmp_path / "shard.tar"), **job).train(Train(1, 1))


def weights(trainer: Trainer) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state_arrays(trainer.model).items()}


def batches_seen(trainer: Trainer, task: Train) -> list[bytes]:
    seen: list[bytes] = []
    trainer.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numpy().tobytes()))
    trainer.train(task)
    return seen


def test_the_same_seed_gives_the_same_weights_to_the_bit(shard: Shard) -> None:
    one, other = trainer(shard), trainer(shard)
    for round_number in (1, 2):
        one.train(Train(round_number, 2))
        torch.rand(7)  # what else draws from the global generator must not matter
        other.train(Train(round_number, 2))
        assert weights(one) == weights(other)


def test_a_round_does_not_depend_on_the_rounds_before_it(shard: Shard) -> None:
    """A drive that rejoins in round 2 does what it would have done had it never left."""
    stayed, rejoined = trainer(shard), trainer(shard)
    start = {name: array.copy() for name, array in state_arrays(stayed.model).items()}
    stayed.train(Train(1, 1))
    load_arrays(stayed.model, start)
    stayed.train(Train(2, 1))
    rejoined.train(Train(2, 1))
    assert weights(stayed) == weights(rejoined)


@pytest.mark.parametrize(
    "change", [{"device": 2}, {"seed": 4}, {"learning_rate": 0.01}, {"momentum": 0.0}, {"proximal": 0.5}]
)
def test_device_seed_and_rates_change_the_result(shard: Shard, change: dict[str, Any]) -> None:
    one, other = trainer(shard), trainer(shard, **change)
    load_arrays(other.model, state_arrays(one.model))
    one.train(Train(1, 1))
    other.train(Train(1, 1))
    assert weights(one) != weights(other)


def test_no_proximal_term_is_the_same_to_the_bit(shard: Shard) -> None:
    one, other = trainer(shard), trainer(shard, proximal=0.0)
    one.train(Train(1, 2))
    other.train(Train(1, 2))
    assert weights(one) == weights(other)


def test_the_proximal_term_draws_towards_the_weights_of_each_round(shard: Shard) -> None:
    """Not towards those of the round before: a drive that has seen round 1 does the same in round 2."""
    stayed, rejoined = trainer(shard, proximal=1.0), trainer(shard, proximal=1.0)
    start = {name: array.copy() for name, array in state_arrays(stayed.model).items()}
    stayed.train(Train(1, 1))
    load_arrays(stayed.model, start)
    stayed.train(Train(2, 1))
    rejoined.train(Train(2, 1))
    assert weights(stayed) == weights(rejoined)


def test_device_round_and_epoch_each_have_their_own_order(shard: Shard) -> None:
    per_epoch = -(-SAMPLES // 8)
    first = batches_seen(trainer(shard), Train(1, 2))
    orders = [
        first[:per_epoch],
        first[per_epoch:],
        batches_seen(trainer(shard), Train(2, 1)),
        batches_seen(trainer(shard, device=2), Train(1, 1)),
        batches_seen(trainer(shard, seed=9), Train(1, 1)),
    ]
    assert len({tuple(order) for order in orders}) == len(orders)
    assert first[:per_epoch] == batches_seen(trainer(shard), Train(1, 1))


def test_an_epoch_sees_every_record_once_scaled_by_the_jobs_factor(shard: Shard) -> None:
    seen: list[Array] = []
    one = trainer(shard, input_scale=0.25)
    one.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numpy().copy()))
    done = one.train(Train(1, 1))
    stack = np.concatenate(seen).reshape(SAMPLES, -1)
    want = np.asarray(shard.fields["image"], np.float32).reshape(SAMPLES, -1) * 0.25
    assert sorted(map(bytes, stack)) == sorted(map(bytes, want))
    assert (done.samples, done.steps) == (SAMPLES, -(-SAMPLES // 8))


@pytest.mark.parametrize(("number", "epochs"), [(1, 1), (3, 2)])
def test_steps_that_the_host_names_are_those_of_the_passes(shard: Shard, number: int, epochs: int) -> None:
    """A machine that counts steps of this drive knows the records of each."""
    passes, named = trainer(shard), trainer(shard)
    orders = [epoch_order(JOB.seed, 1, number, epoch, SAMPLES) for epoch in range(epochs)]
    batches = [
        order[start : start + JOB.batch_size].astype("<u4").tobytes()
        for order in orders
        for start in range(0, SAMPLES, JOB.batch_size)
    ]
    whole, steps = passes.train(Train(number, epochs)), named.train(Train(number, 0, batches))
    assert weights(named) == weights(passes)
    assert steps._replace(step_seconds=[]) == whole
    assert len(steps.step_seconds) == steps.steps == len(batches)
    assert all(each.total > 0 and each.encode == 0 for each in steps.step_seconds)


def test_what_a_pass_reports(shard: Shard) -> None:
    one = trainer(shard, batch_size=20)
    done = one.train(Train(1, 3))
    assert (done.samples, done.steps) == (3 * SAMPLES, 9)
    assert done.read_bytes == 3 * (shard.fields["image"].nbytes + shard.fields["label"].nbytes)
    assert np.isfinite(done.loss)
    assert done.loss > 0


def test_training_is_torchs_plain_loop(shard: Shard) -> None:
    """The same batches through torch.optim.SGD give the same weights, and the mean loss is that of the samples."""
    one = trainer(shard)
    reference = copy.deepcopy(one.model)
    batches: list[tuple[torch.Tensor, torch.Tensor]] = []
    generator = np.random.default_rng([JOB.seed, 1, 1, 0])
    order = generator.permutation(SAMPLES)
    for start in range(0, SAMPLES, JOB.batch_size):
        index = order[start : start + JOB.batch_size]
        images = torch.from_numpy(shard.fields["image"][index]).float() * JOB.input_scale
        batches.append((images, torch.from_numpy(shard.fields["label"][index])))
    optimiser = torch.optim.SGD(reference.parameters(), lr=JOB.learning_rate, momentum=JOB.momentum)
    total = 0.0
    for images, labels in batches:
        loss = torch.nn.functional.cross_entropy(reference(images), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        total += loss.item() * len(labels)
    done = one.train(Train(1, 1))
    assert done.loss == pytest.approx(total / SAMPLES, rel=1e-6)
    assert weights(one) == {name: array.tobytes() for name, array in state_arrays(reference).items()}


def test_measuring_leaves_the_weights_untouched_and_fills_the_time_asked_for(shard: Shard) -> None:
    one = trainer(shard)
    before = weights(one)
    measured = one.measure(Measure(16, 10.0))
    assert weights(one) == before
    assert measured.elapsed_seconds >= 10.0
    assert measured.samples == 16 * measured.steps
    assert 0 < measured.seconds.total <= measured.elapsed_seconds
    assert measured.seconds.encode == 0
    other = trainer(shard)
    one.train(Train(1, 1))
    other.train(Train(1, 1))
    assert weights(one) == weights(other)


def test_measuring_by_steps_gives_the_seconds_of_each_step_and_of_one_encoding(shard: Shard) -> None:
    measured = trainer(shard).measure(Measure(4, 3600.0, steps=3, warm_up_steps=2))
    assert (measured.steps, measured.samples, len(measured.step_seconds)) == (3, 12, 3)
    for phase in ("forward", "backward", "update", "encode"):
        assert getattr(measured.seconds, phase) == sum(getattr(step, phase) for step in measured.step_seconds)
    assert all(step.encode == 0 < step.forward for step in measured.step_seconds)
    assert measured.encode_seconds > 0
    assert trainer(shard).measure(Measure(4, 1.0)).step_seconds == []


def test_a_measurement_computes_in_as_many_threads_as_it_says_and_a_drives_in_one(shard: Shard) -> None:
    for task, threads in ((Measure(4, 1.0, steps=1, threads=2), 2), (Measure(4, 1.0, steps=1), 1)):
        trainer(shard).measure(task)
        assert torch.get_num_threads() == threads


def test_the_seconds_too_end_a_measurement_by_steps(shard: Shard) -> None:
    measured = trainer(shard).measure(Measure(4, 1e-6, steps=50))
    assert measured.steps == len(measured.step_seconds) == 1


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"warm_up_steps": 0}, []),
        ({"warm_up_steps": 3}, [8, 8, 8]),
        ({"warm_up_steps": 3, "warm_up_batch_size": 2}, [2, 2, 2]),
        ({"warm_up_steps": 3, "device_seconds": 1e-6}, [8]),  # a step of a large model is warm-up enough
    ],
)
def test_the_warm_up_is_as_asked_for(shard: Shard, changes: dict[str, Any], sizes: list[int]) -> None:
    one, seen = trainer(shard), []
    one.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    measured = one.measure(Measure(**({"batch_size": 8, "device_seconds": 3600.0, "steps": 1} | changes)))
    assert seen == [*sizes, 8]
    assert measured.samples == 8


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"cycle_steps": 3}, [8, 8, 8, 8]),  # one warms the caches
        ({"cycle_steps": 15, "warm_up_batch_size": 2}, [2, *[8] * 8]),  # until five seconds have passed
        ({"cycle_steps": 15, "slow": True}, [8, 8, 8]),  # two count of those that take them all
        ({"cycle_steps": 15, "slow": True, "warm_up_batch_size": 2}, [2, 8]),  # of long ones one
    ],
)
def test_marked_steps_are_as_many_as_their_seconds_allow(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], sizes: list[int]
) -> None:
    marks: list[PhaseMark] = []
    monkeypatch.setattr("firmware_agent.training.trainer.CycleMarks", lambda: SimpleNamespace(execute=marks.append))
    one, seen = trainer(shard), []
    if changes.pop("slow", False):
        one._stopwatch.now = (5.0 * tick for tick in ticks()).__next__
    one.measure(Measure(batch_size=8, device_seconds=1e-6, steps=1, warm_up_steps=0, restore=False))
    one.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    one.measure(Measure(batch_size=8, device_seconds=1e-6, steps=1, warm_up_steps=0, restore=False, **changes))
    assert seen == [8, *sizes]
    step = [PhaseMark.FORWARD, PhaseMark.BACKWARD, PhaseMark.UPDATE]
    marks = [mark for mark in marks if mark != PhaseMark.IDLE]
    assert marks == [PhaseMark.START, *step * len(sizes), *[PhaseMark.ENCODE] * 3, PhaseMark.STOP]


def test_weights_need_not_be_restored(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    one = trainer(shard)
    before = weights(one)
    monkeypatch.setattr(copy, "deepcopy", lambda _: pytest.fail("a second copy of the weights was made"))
    one.measure(Measure(8, 3600.0, steps=1, restore=False))
    assert weights(one) != before


def test_layers_are_measured_if_asked_for_and_add_up_to_the_median_step(shard: Shard) -> None:
    one, other = trainer(shard), trainer(shard)
    measured = one.measure(Measure(8, 3600.0, steps=3, restore=False, layers=True))
    assert measured.layers is not None
    assert [layer.name for layer in measured.layers.layers] == ["0", "2", "6", "8"]
    median = median_step(measured.step_seconds)
    for phase in ("forward", "backward"):
        layers = [getattr(layer, f"{phase}_seconds") for layer in measured.layers.layers]
        assert sum(layers) == pytest.approx(getattr(median, phase), rel=1e-9)
        assert all(seconds >= 0 for seconds in layers)
        # This clock advances when it is read: whoever watches reads it more often.
        assert getattr(measured.layers.watched, phase) > getattr(median, phase)
    assert measured.layers.passes == 3
    plain = other.measure(Measure(8, 3600.0, steps=3, restore=False))
    assert plain.layers is None
    assert plain.step_seconds == measured.step_seconds
    assert weights(one) == weights(other)
    assert all(parameter.grad is None for parameter in one.model.parameters())
    assert one.measure(Measure(8, 1.0, layers=True)).layers is None


def test_one_watched_pass_is_enough_of_a_long_step(shard: Shard) -> None:
    measured = trainer(shard).measure(Measure(8, 0.1, steps=3, layers=True))
    assert measured.layers is not None
    assert measured.layers.passes == 1


def test_a_model_of_which_the_layers_cannot_be_told_apart_is_measured_as_a_whole(shard: Shard) -> None:
    one = trainer(shard, model="picky.py:Picky", source=PICKY)
    measured = one.measure(Measure(8, 3600.0, steps=2, layers=True))
    assert (measured.steps, measured.layers) == (2, None)


def test_peak_memory_is_measured_and_its_source_named(shard: Shard) -> None:
    measured = trainer(shard).measure(Measure(8, 3600.0, steps=1))
    assert measured.peak_memory_source in ("VmHWM", "ru_maxrss")
    assert 20e6 < measured.peak_memory_bytes < 64e9


def test_encoding_copies_the_weights(shard: Shard) -> None:
    one = trainer(shard)
    before = weights(one)
    frames = one.encode(3)
    one.train(Train(1, 1))
    announced, *pieces = [decode(frame) for frame in frames]
    assert isinstance(announced, Tensors)
    assembler = Assembler(3, announced.specs)
    for piece in pieces:
        assert isinstance(piece, Slice)
        assembler.add(piece)
    assert {name: array.tobytes() for name, array in assembler.arrays().items()} == before


def test_encoding_is_charged_to_its_phase_alone(shard: Shard) -> None:
    clock = ticks()
    watch = Stopwatch(lambda: next(clock))
    Trainer(JOB, shard, 0, watch).encode(1)
    assert watch.take() == PhaseSeconds(encode=0.125)


def test_arrays_go_into_the_model_and_come_back(shard: Shard) -> None:
    one, other = trainer(shard), trainer(shard, seed=99)
    load_arrays(other.model, {name: array.copy() for name, array in state_arrays(one.model).items()})
    assert weights(one) == weights(other)


def test_a_tensor_that_cannot_cross_the_wire_is_named_as_such(shard: Shard) -> None:
    one = trainer(shard)
    with pytest.raises(ModelError, match=r"cannot cross the wire.*use float32"):
        state_arrays(one.model.to(torch.bfloat16))


def test_a_model_that_cannot_be_built_here_is_a_model_error(shard: Shard) -> None:
    with pytest.raises(ModelError, match=r"drive only torch, numpy.*image\.packages"):
        trainer(shard, model="net.py:build", source="import not_on_a_drive")

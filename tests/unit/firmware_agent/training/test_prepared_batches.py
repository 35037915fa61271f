"""Batches that the job's own code makes in a drive: the same in each kind of training, and when a round is repeated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_agent.clock import Stopwatch
from firmware_agent.common.frames.session_frames import Code, Job, Train
from firmware_agent.common.frames.step_frames import Step
from firmware_agent.common.shard import Shard, open_shard, write_shard
from firmware_agent.common.weights import load_arrays, state_arrays
from firmware_agent.training.gradient_step import GradientWorker
from firmware_agent.training.loaded_job import LoadedJob
from firmware_agent.training.trainer import Trainer
from tests.support.device_steps import compute
from tests.unit.firmware_agent.training.test_trainer import ticks

TEXT = """
import torch
from torch import nn

SEEN = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, tokens, length):
        SEEN.append(tokens.tolist())
        inside = (torch.arange(tokens.shape[1]) < length[:, None]).float()
        return self.out((self.embed(tokens) * inside[..., None]).sum(1))


def swap(batch, generator):
    drawn = torch.randint(0, 9, batch["tokens"].shape, generator=generator)
    return {**batch, "tokens": torch.where(drawn > 6, drawn, batch["tokens"])}


def fit(csd):
    assert all(len(batch["tokens"][0]) == batch["tokens.length"].max() for batch in csd.loader)
    csd.fit()


def train(csd):
    csd.fit()
"""
JOB: dict[str, Any] = {
    **{"model": "net.py:Net", "arguments": {}, "source": TEXT, "input_scale": 1.0, "seed": 3, "batch_size": 4},
    **{"learning_rate": 0.1, "momentum": 0.9, "input_fields": ["tokens", "tokens.length"], "collate": Code("pad")},
    "augment": [Code("net.py:swap", TEXT)],
}


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    path, generator = Path(tmp_path_factory.mktemp("shard")) / "shard.tar", np.random.default_rng(0)
    lengths = generator.integers(1, 8, 10)
    tokens = generator.integers(1, 9, (10, 7)) * (np.arange(7) < lengths[:, None])
    write_shard(path, "some", {"tokens": tokens, "tokens.length": lengths, "label": generator.integers(0, 3, 10)})
    return open_shard(path)


def trained(shard: Shard, number: int, **more: Any) -> dict[str, bytes]:
    trainer = Trainer(Job(**JOB | more), shard, 1, Stopwatch(ticks().__next__))
    trainer.train(Train(number, 2))
    return {name: array.tobytes() for name, array in state_arrays(trainer.model).items()}


def test_a_round_repeats_to_the_bit_and_a_client_programs_loader_has_its_batches(shard: Shard) -> None:
    own = trained(shard, 1)
    assert own == trained(shard, 1) == trained(shard, 1, client=Code("net.py:train", TEXT))
    assert own != trained(shard, 1, augment=[])
    assert trained(shard, 2) not in (own, trained(shard, 2, augment=[]))
    trained(shard, 1, client=Code("net.py:fit", TEXT))


def test_records_as_read_are_counted_and_making_a_batch_is_part_of_the_forward_phase(shard: Shard) -> None:
    watch = Stopwatch(ticks().__next__)
    trainer = Trainer(Job(**JOB), shard, 1, watch)
    done = trainer.train(Train(1, 1))
    assert done.read_bytes == sum(column.nbytes for column in shard.fields.values())
    plain, program = watch.take(), Trainer(Job(**JOB, client=Code("net.py:train", TEXT)), shard, 1, watch)
    assert program.train(Train(1, 1)).read_bytes == done.read_bytes
    found = watch.take()
    assert found.forward > plain.forward  # three laps a batch in place of one


def test_a_step_draws_by_its_number_alone(shard: Shard) -> None:
    job = Job(**JOB)
    gradients = []
    for number in (1, 2, 1):
        loaded = LoadedJob(job, shard, Stopwatch(ticks().__next__))
        begin = {name: array.copy() for name, array in state_arrays(loaded.model).items()}
        worker = GradientWorker(job, loaded, "csd-0", Stopwatch(ticks().__next__))
        load_arrays(loaded.model, begin)
        compute(worker, Step(number, np.arange(6, dtype="<u4").tobytes(), 6))
        gradients.append([parameter.grad.numpy().tobytes() for parameter in loaded.model.parameters()])  # type: ignore[union-attr]
    assert gradients[0] == gradients[2] != gradients[1]

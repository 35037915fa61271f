"""Ragged records, models of several fields and the user's own collate and augment functions on native drives."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 8), nn.Linear(8, 2)

    def forward(self, tokens, inside):
        return self.out((self.embed(tokens) * inside[..., None]).sum(1) / inside.sum(1, keepdim=True))


def collate(batch, least=1):
    lengths = batch["tokens.length"]
    longest = max(least, int(lengths.max()))
    inside = torch.arange(longest) < lengths[:, None]
    return {"tokens": batch["tokens"][:, :longest], "inside": inside, "label": batch["label"]}


def forget(batch, generator, share=0.1):
    drawn = torch.rand(batch["tokens"].shape, generator=generator) < share
    return {**batch, "tokens": batch["tokens"].masked_fill(drawn, 9)}


def ones(batch, generator):
    return {"tokens": torch.ones(3)}


def breaks(batch):
    raise KeyError("my bug")


def breaks_in_training(batch):
    if torch.is_grad_enabled() and len(batch["label"]) == 8:
        raise KeyError("my bug")
    return collate(batch)
"""
JOB: dict[str, Any] = {
    "model": "net.py:Net",
    "data": {"source": "./texts.jsonl", "input": ["tokens", "inside"]},
    "collate": {"name": "net.py:collate", "least": 2},
    "augment": [{"name": "net.py:forget", "share": 0.05}],
    "rounds": 2,
    "batch_size": 8,
    "learning_rate": 0.5,
}
SYNC: dict[str, Any] = {"mode": "sync", "sync": {"round_steps": 20}}


@pytest.fixture
def own(workshop: Workshop) -> Workshop:
    """A workshop with a model file and texts of 1 to 20 tokens, of which one class has more large ones."""
    generator = np.random.default_rng(0)
    rows = []
    for number in range(200):
        large = generator.random(generator.integers(1, 21)) < (0.9 if number % 2 else 0.1)
        rows.append({"tokens": (generator.integers(0, 4, len(large)) + 4 * large).tolist(), "label": number % 2})
    (workshop.folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    workshop.write("net.py", NET)
    return workshop


@pytest.mark.parametrize("mode", [{}, SYNC])
def test_ragged_records_are_learnt_and_a_resumed_run_goes_on_to_the_bit(
    mode: dict[str, Any], own: Workshop, csd_emu: Command
) -> None:
    job = own.write("job.yaml", JOB | mode)
    done = csd_emu("run", job, "--array", own.array, "--runs", own.runs, "--json")
    assert done.code == 0, done.err
    assert done.json("run")["accuracy"] > 0.9
    weights = (own.run_directory() / "model.safetensors").read_bytes()
    own.runs.rename(own.folder / "whole")
    job = own.write("job.yaml", JOB | mode | {"rounds": 1})
    assert csd_emu("run", job, "--array", own.array, "--runs", own.runs).code == 0
    directory = own.run_directory()
    (directory / "job.yaml").write_text((directory / "job.yaml").read_text().replace("rounds: 1", "rounds: 2"))
    (own.folder / "net.py").unlink()  # the run directory has it
    done = csd_emu("run", "--resume", directory)
    assert done.code == 0, done.err
    assert (directory / "model.safetensors").read_bytes() == weights
    own.assert_clean()


def test_a_collate_function_that_fails_in_a_drive_is_named_with_its_line(own: Workshop, csd_emu: Command) -> None:
    job = own.write("job.yaml", JOB | {"collate": "net.py:breaks_in_training", "augment": []})
    done = csd_emu("run", job, "--array", own.array, "--runs", own.runs)
    assert done.code == 1
    line = 1 + next(n for n, text in enumerate(NET.splitlines()) if "if torch.is_grad" in text) + 1
    assert f'File "net.py", line {line}, in breaks_in_training' in done.err
    assert "csd-0" in done.err
    own.assert_clean()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"collate": None}, "texts.jsonl: field tokens has 1 to 20 values in a record; write collate: pad"),
        ({"collate": "pad"}, "data.input: batches have no field 'inside', but tokens, tokens.length, label"),
        ({"collate": "net.py:breaks"}, "collate 'net.py:breaks': failed in a trial on two records: KeyError: 'my bug'"),
        ({"augment": ["net.py:ones"]}, "augment 'net.py:ones': returned tokens float32[3], of label int64[2]"),
        ({"augment": "flip"}, "augment: flip and crop are of images"),
        ({"augment": ["flop"]}, "did you mean 'flip'"),
        ({"augment": [{"name": "net.py:forget", "shre": 0.1}]}, "did you mean 'share'"),
        (SYNC | {"placement": "auto"}, "collate: placement is of models that take one field of records as stored;"),
        (SYNC | {"sync": {"batch_norm": "synchronised"}}, "collate: sync.batch_norm: synchronised is of models that"),
    ],
)
def test_what_makes_no_batches_is_said_before_anything_starts(
    changes: dict[str, Any], message: str, own: Workshop, csd_emu: Command
) -> None:
    done = csd_emu("run", own.write("job.yaml", JOB | changes), "--array", own.array, "--runs", own.runs)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert not own.runs.exists()
    own.assert_clean()

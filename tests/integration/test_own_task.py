"""Tasks of the user's own on native drives: records of any form, with a loss and metrics that the job names."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
NET = """
import torch
from torch import nn
from torch.nn import functional


class TinyLanguageModel(nn.Module):
    def __init__(self, tokens=8, width=16, places=6):
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, width), nn.Embedding(places, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, tokens, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        places = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(places)
        return self.out(self.block(self.embed(tokens) + self.place(torch.arange(places)), src_mask=mask))


def table_net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def huber(outputs, batch, delta=1.0):
    return functional.huber_loss(outputs, batch["y"], delta=delta)


def each(outputs, batch):
    return outputs - batch["y"]


def breaks(outputs, batch):
    raise KeyError("my bug")


def breaks_in_training(outputs, batch):
    if torch.is_grad_enabled() and len(outputs) == 8:
        raise KeyError("my bug")
    return outputs.mean()


def bias(outputs, batch):
    return (outputs - batch["y"]).mean()


def detached(outputs, batch):
    return outputs.mean().detach()


def single(pred):
    return pred.mean()


def nothing(outputs, batch):
    pass


def accuracy(outputs, batch):
    return 1.0


def sometimes(outputs, batch):
    return float("nan") if len(outputs) > 1 else 0.0
"""
LANGUAGE: dict[str, Any] = {
    "model": "net.py:TinyLanguageModel",
    "data": {"source": "./tokens.npz"},
    "loss": "next_token",
    "rounds": 3,
    "batch_size": 16,
    "learning_rate": 0.02,
}
TABLE: dict[str, Any] = {
    "model": "net.py:table_net",
    "data": {"source": "./table.npz"},
    "loss": {"name": "net.py:huber", "delta": 0.5},
    "metrics": ["mean_absolute_error", "net.py:bias"],
    "rounds": 3,
    "batch_size": 8,
}
SYNC: dict[str, Any] = {"mode": "sync", "sync": {"round_steps": 15}}


@pytest.fixture
def own(workshop: Workshop) -> Workshop:
    """A workshop with a model file, sequences whose next token can be known, and a table."""
    generator = np.random.default_rng(0)
    begin, step = generator.integers(0, 8, 240), generator.integers(1, 3, 240)
    tokens = (begin[:, None] + step[:, None] * np.arange(6)) % 8
    np.savez(workshop.folder / "tokens.npz", tokens=tokens)
    x = generator.standard_normal((200, 6)).astype(np.float32)
    y = x @ generator.standard_normal((6, 1)).astype(np.float32)
    np.savez(workshop.folder / "table.npz", x=x, y=y, test_x=x[:40], test_y=y[:40])
    workshop.write("net.py", NET)
    return workshop


def train(own: Workshop, csd_emu: Command, job: dict[str, Any], *more: Any) -> dict[str, Any]:
    done = csd_emu("run", own.write("job.yaml", job), "--array", own.array, "--runs", own.runs, "--json", *more)
    assert done.code == 0, done.err
    return done.json("run")


@pytest.mark.parametrize("mode", [{}, SYNC])
def test_a_loss_of_ones_own_goes_with_double_precision_in_both_modes(
    mode: dict[str, Any], own: Workshop, csd_emu: Command
) -> None:
    summary = train(own, csd_emu, TABLE | mode | {"precision": "float64", "rounds": 1})
    assert summary["test_loss"] == own.rounds()[0]["test_loss"]
    own.assert_clean()


@pytest.mark.parametrize("mode", [{}, SYNC])
def test_a_language_model_learns_from_tokens(mode: dict[str, Any], own: Workshop, csd_emu: Command) -> None:
    summary = train(own, csd_emu, LANGUAGE | mode)
    assert summary["accuracy"] is None
    rounds = own.rounds()
    perplexities = [record["metrics"]["perplexity"] for record in rounds]
    assert perplexities[0] > perplexities[1] > perplexities[2] == summary["metrics"]["perplexity"]
    assert perplexities[2] < 6  # of eight tokens, were nothing learnt
    assert [np.exp(record["test_loss"]) for record in rounds] == pytest.approx(perplexities)
    own.assert_clean()


def test_a_table_with_a_loss_and_a_metric_of_ones_own_goes_on_as_it_would_have(own: Workshop, csd_emu: Command) -> None:
    whole = train(own, csd_emu, TABLE)
    assert set(whole["metrics"]) == {"mean_absolute_error", "bias"}
    weights = (own.run_directory() / "model.safetensors").read_bytes()
    own.runs.rename(own.folder / "whole")
    train(own, csd_emu, TABLE | {"rounds": 1})
    directory = own.run_directory()
    job = (directory / "job.yaml").read_text()
    (directory / "job.yaml").write_text(job.replace("rounds: 1", "rounds: 3"))
    for name in ("net.py", "job.yaml"):
        (own.folder / name).unlink()  # the run directory has all that it needs but the data
    done = csd_emu("run", "--resume", directory, "--json")
    assert done.code == 0, done.err
    assert done.json("run")["metrics"] == whole["metrics"]
    assert (directory / "model.safetensors").read_bytes() == weights
    own.assert_clean()


def test_a_metric_that_is_no_number_and_labels_without_logits_leave_a_run_that_can_be_read(
    own: Workshop, csd_emu: Command
) -> None:
    tokens = np.load(own.folder / "table.npz")
    np.savez(own.folder / "table.npz", x=tokens["x"], y=(tokens["y"] > 0).astype(np.int64))
    job = TABLE | {"loss": "binary_cross_entropy", "metrics": ["net.py:sometimes"], "rounds": 1}
    summary = train(own, csd_emu, job)
    assert (summary["accuracy"], summary["metrics"]) == (None, {"sometimes": None})
    shown = csd_emu("runs", "--runs", own.runs, "--json").out
    assert "finished" in shown
    assert csd_emu("report", own.run_directory()).code == 0
    done = csd_emu("run", "--resume", own.run_directory())
    assert "this run has finished" in done.out, done.err
    tables = csd_emu("runs", "export", own.run_directory(), "--output", own.folder / "tables")
    assert tables.code == 0, tables.err
    own.assert_clean()


def test_a_loss_that_fails_in_a_drive_is_named_with_its_line_and_the_drive(own: Workshop, csd_emu: Command) -> None:
    job = own.write("job.yaml", TABLE | {"loss": "net.py:breaks_in_training"})
    done = csd_emu("run", job, "--array", own.array, "--runs", own.runs)
    assert done.code == 1
    line = 1 + next(n for n, text in enumerate(NET.splitlines()) if "if torch.is_grad" in text) + 1
    assert f'File "net.py", line {line}, in breaks_in_training' in done.err
    assert "csd-0" in done.err
    assert "KeyError: 'my bug'" in done.err
    own.assert_clean()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"loss": "net.py:each"},
            "loss 'net.py:each' returned shape (16, 1); return a scalar, the mean over the records",
        ),
        (
            {"loss": "net.py:breaks"},
            "loss 'net.py:breaks' does not take what model 'net.py:table_net' gives, tried in float32 with gradients: "
            "KeyError",
        ),
        ({"loss": "net.py:detached"}, "loss 'net.py:detached' has no gradient"),
        ({"loss": "net.py:single"}, "loss 'net.py:single' takes (pred); call its first arguments outputs and batch"),
        ({"loss": "mean_square_error"}, "did you mean 'mean_squared_error'"),
        ({"loss": {"name": "net.py:huber", "dleta": 1.0}}, "did you mean 'delta'"),
        ({"data": {"source": "./table.npz", "input": "z"}}, "has no field 'z', but x, y"),
        ({"data": {"source": "./table.npz", "partition": {"dirichlet": 0.5}}}, "has no class numbers to deal out by"),
        (LANGUAGE | {"loss": None}, "has no field that is to be predicted (tokens); name a loss"),
        (LANGUAGE | {"model": "net.py:table_net"}, "does not take"),
        (
            LANGUAGE | {"model_arguments": {"tokens": 4}},
            "an embedding needs 8 rows and no value below 0; model 'net.py:TinyLanguageModel' does not take them: "
            "IndexError: index out of range",
        ),
        ({"metrics": ["net.py:bias", "net.py:bias"]}, "metrics: bias is named twice; leave one out"),
        ({"target": {"accuracy": 0.9}}, "so there is no accuracy; leave it out"),
        ({"metrics": ["perplexity"]}, "loss: next_token is of the field tokens"),
        (
            {"metrics": ["net.py:nothing"]},
            "metric 'nothing' does not take what model",
        ),
        ({"metrics": [{"name": "net.py:bias"}, "net.py:accuracy"]}, "metrics: accuracy is a figure of every round"),
        ({"metrics": ["perplexty"]}, "did you mean 'perplexity'"),
        (
            SYNC | {"placement": "1"},
            "placement: the host's part of a model knows the cross_entropy of class numbers alone",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(
    changes: dict[str, Any], message: str, own: Workshop, csd_emu: Command
) -> None:
    job = own.write("job.yaml", TABLE | changes)
    done = csd_emu("run", job, "--array", own.array, "--runs", own.runs)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert not own.runs.exists()
    own.assert_clean()

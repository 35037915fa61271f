"""An evaluator judges without changing what a run begins with, and tries model, loss and metrics beforehand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_agent.common.errors import CsdError, ModelError, ModelFailed, PluginError
from firmware_agent.common.losses.objective import ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.config.resolve import load_plugins
from host.core.datasets import Dataset, load_dataset
from host.core.evaluation import Evaluator
from host.core.learning.initial_weights import ModelStart
from host.policies.metrics import make_metrics

NET = """
import torch
from torch import nn
from torch.nn import functional

def table():
    return nn.Linear(3, 1)

def language(tokens=8):
    return nn.Sequential(nn.Embedding(tokens, 4), nn.Linear(4, 64))

def huber(outputs, batch):
    return functional.huber_loss(outputs, batch["y"])

def cut_off(outputs, batch):
    return outputs.mean().detach()

def breaks(outputs, batch):
    if torch.is_grad_enabled():
        raise KeyError("my bug")
    return outputs.mean()

def ratio(outputs, batch):
    return (outputs - batch["y"]).mean() / 0

def rare(outputs, batch):  # of the first two records there is no other class
    return outputs.mean() * (batch["y"] > 0.5).float().mean() / (batch["y"] > 0.5).float().mean()

def single(pred, truth):
    assert pred.dtype == truth["y"].dtype
    return functional.mse_loss(pred, truth["y"])

def each(outputs, batch):
    return (outputs - batch["y"])[:, 0]

def last(outputs, batch):
    assert len(outputs) < 3
    return 1.0
"""
TABLE = {"x": np.ones((20, 3), np.float32), "y": np.r_[np.zeros(9), np.ones(11)].astype(np.float32)[:, None]}


def evaluator(
    tmp_path: Path,
    model: str = "table",
    loss: str = "my.py:huber",
    precision: str | None = "float64",
    metrics: Any = (),
    fields: dict[str, Any] = TABLE,
    held_out: dict[str, Any] | None = None,
    **arguments: int,
) -> Evaluator:
    (tmp_path / "my.py").write_text(NET)
    sections = {"model": "digits_cnn", "data": {"source": "digits"}, "metrics": [f"my.py:{each}" for each in metrics]}
    job = JobConfig.model_validate(sections)
    plugins = {each.name: each for each in load_plugins(job, tmp_path / "job.yaml").metrics}
    dataset = Dataset("mine", fields, fields if held_out is None else held_out, 1.0)
    code = ShippedCode(loss, NET if ":" in loss else None)
    return Evaluator(
        *(ShippedCode(f"my.py:{model}", NET, arguments), dataset, 0),
        ObjectiveSpec(code, tuple(dataset.input_fields), 1.0),
        make_metrics(job.metrics, plugins, loss),
        ModelStart(None, (), precision),
    )


def test_weights_that_were_judged_are_not_those_that_a_run_begins_with() -> None:
    evaluator = Evaluator(ShippedCode("digits_cnn"), load_dataset("digits", 0), 0)
    before = evaluator.initial_weights()
    evaluator.evaluate({name: np.ones_like(array) for name, array in before.items()})
    after = evaluator.initial_weights()
    assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}
    after["0.weight"][...] = 0
    assert evaluator.initial_weights()["0.weight"].tobytes() == before["0.weight"].tobytes()


def line(text: str) -> int:
    return 1 + next(number for number, each in enumerate(NET.splitlines()) if text in each)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("cut_off", r"^loss 'my\.py:cut_off' has no gradient; make it of the outputs by torch, without detach$"),
        (
            "breaks",
            rf"^loss 'my\.py:breaks' does not take what model 'my\.py:table' gives, tried in float64 with gradients: "
            rf"KeyError: 'my bug' \(my\.py, line {line('KeyError')}\)$",
        ),
        ("ratio", r"^loss 'my\.py:ratio' is -?inf before anything is trained; is there a logarithm of 0"),
    ],
)
def test_a_loss_is_tried_with_its_gradient(tmp_path: Path, loss: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        evaluator(tmp_path, loss=f"my.py:{loss}")
    if loss != "breaks":  # a client program may use it for anything
        evaluator(tmp_path, loss=f"my.py:{loss}", precision=None)


@pytest.mark.parametrize("loss", ["huber", "rare", "single"])
def test_what_drives_can_train_by_is_taken(tmp_path: Path, loss: str) -> None:
    judge = evaluator(tmp_path, loss=f"my.py:{loss}", metrics=["single"])
    found = judge.evaluate(judge.initial_weights())
    assert np.isfinite([found.loss, found.metrics["single"]]).all()


def test_metrics_are_tried_on_several_records_and_named_when_they_fail(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"metric 'my\.py:each': returned shape \(2,\); return a number, the mean"):
        evaluator(tmp_path, metrics=["each"])
    judge = evaluator(tmp_path, metrics=["last"])
    with pytest.raises(
        ModelFailed, match=rf"^metric 'last': .*AssertionError.*line {line('len(outputs) < 3')}"
    ) as error:
        judge.evaluate(judge.initial_weights())
    assert error.value.code == "metric last"


@pytest.mark.parametrize(
    ("value", "where", "told"),
    [
        (
            8,
            0,
            r"tokens goes from 0 to 8 \(records 0, 5\): an embedding needs 9 rows and no value below 0; model 'my.py",
        ),
        (-1, 0, r"tokens goes from -1 to 7 \(records 5, 0\)"),
        (9, 1, r"tokens goes from 0 to 9 \(held-out records 0, 5\): an embedding needs 10 rows"),
    ],
)
@pytest.mark.parametrize("place", [5, 0])
def test_records_with_the_smallest_and_largest_tokens_are_tried(
    tmp_path: Path, value: int, where: int, told: str, place: int
) -> None:
    parts = [{"tokens": np.tile(np.arange(8), (20, 1))} for _ in range(2)]
    evaluator(tmp_path, "language", "next_token", fields=parts[0])
    parts[where]["tokens"][place, 3] = value
    told = told if place else "data: tokens goes from "
    with pytest.raises(CsdError, match=told) as error:
        evaluator(tmp_path, "language", "next_token", fields=parts[0], held_out=parts[1])
    assert isinstance(error.value, ModelError)
    assert "index out of range in self" in str(error.value)

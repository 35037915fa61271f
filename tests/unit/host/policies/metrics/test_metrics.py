"""Metrics of a job: built in, the user's own, and those that come by themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.errors import PluginError
from firmware_agent.common.losses.built_in_losses import NextToken
from host.config.job_file import JobConfig
from host.config.resolve import load_plugins
from host.core.learning.judgement import HeldOutMetric
from host.policies.metrics import make_metrics
from tests.support.examples import examples

OWN = """
def bias(outputs, batch, scale=1.0):
    return scale * (outputs - batch["y"]).mean()


class Largest:
    def __init__(self):
        self.value = float("-inf")

    def update(self, outputs, batch):
        self.value = max(self.value, float(outputs.max()))

    def compute(self):
        return self.value
"""


def metrics_of(folder: Path, sections: Any, loss: str = "cross_entropy") -> dict[str, HeldOutMetric]:
    (folder / "my.py").write_text(OWN)
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}, "metrics": sections})
    plugins = {each.name: each for each in load_plugins(job, folder / "job.yaml").metrics}
    return {name: make() for name, make in make_metrics(job.metrics, plugins, loss).items()}


def test_without_metrics_in_the_job_the_loss_says_which_suit(tmp_path: Path) -> None:
    found = {loss: list(metrics_of(tmp_path, None, loss)) for loss in ("cross_entropy", "next_token", "my.py:huber")}
    assert found == {"cross_entropy": [], "next_token": ["perplexity"], "my.py:huber": []}
    assert list(metrics_of(tmp_path, None, "mean_squared_error")) == ["mean_absolute_error"]
    assert metrics_of(tmp_path, [], "next_token") == {}


@settings(max_examples=examples(40))
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 99))
def test_figures_of_batches_are_those_of_all_records_at_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs, y = (torch.randn(sum(sizes), 1, generator=generator, dtype=torch.float64) for _ in range(2))
    sections = [{"name": "mean_absolute_error"}, {"name": "my.py:bias", "scale": 2.0}, {"name": "my.py:Largest"}]
    made = metrics_of(tmp_path_factory.getbasetemp(), sections)
    for part, wanted in zip(outputs.split(sizes), y.split(sizes), strict=True):
        for metric in made.values():
            metric.update(part, {"y": wanted})
    found = {name: metric.compute() for name, metric in made.items()}
    assert found["mean_absolute_error"] == pytest.approx(float((outputs - y).abs().mean()))
    assert found["bias"] == pytest.approx(2 * float((outputs - y).mean()))
    assert found["Largest"] == float(outputs.max())


@settings(max_examples=examples(40))
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 99))
def test_the_padding_of_ragged_targets_is_no_error(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int
) -> None:
    (metric,) = metrics_of(tmp_path_factory.getbasetemp(), ["mean_absolute_error"]).values()
    generator = torch.Generator().manual_seed(seed)
    outputs, y = (torch.randn(len(lengths), 5, generator=generator, dtype=torch.float64) for _ in range(2))
    metric.update(outputs, {"y": y, "y.length": torch.tensor(lengths)})
    errors = [float(error[:size].mean()) for error, size in zip((outputs - y).abs(), lengths, strict=True)]
    assert metric.compute() == pytest.approx(np.mean(errors))


def test_perplexity_is_e_to_the_loss_of_a_next_token(tmp_path: Path) -> None:
    (metric,) = metrics_of(tmp_path, ["perplexity"]).values()
    outputs, batch = torch.randn(3, 5, 7), {"tokens": torch.randint(0, 7, (3, 5))}
    metric.update(outputs, batch)
    assert metric.compute() == pytest.approx(float(NextToken()(outputs, batch).exp()))


def test_the_class_may_be_among_the_five_largest(tmp_path: Path) -> None:
    (metric,) = metrics_of(tmp_path, ["top_5_accuracy"]).values()
    logits = torch.from_numpy(np.arange(20.0).reshape(2, 10))
    metric.update(logits, {"label": torch.tensor([5, 4])})
    assert metric.compute() == 0.5


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="metrics: bias is named twice"):
        metrics_of(tmp_path, ["my.py:bias", {"name": "my.py:bias", "scale": 3.0}])

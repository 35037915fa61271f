"""What an optimiser remembers, against optimisers that have taken a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csd_emu.config.servers_file import ServersConfig
from firmware_agent.common.models import build_model
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.config.resolve import load_plugins
from host.core.model_facts import inspect_load
from host.training.host_optimiser import HostOptimiser
from host.training.multi_server.worker.worker_frames import join_sums
from host.training.optimiser_bytes import load_between, optimiser_bytes

SPEC = ShippedCode("digits_cnn")
OWN = """
import torch


class Three(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                for name in ("one", "two", "three"):
                    self.state[each].setdefault(name, torch.zeros_like(each)).add_(each.grad)
"""


def job_with(name: str, momentum: float) -> JobConfig:
    fields: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync"}
    return JobConfig.model_validate(fields | {"momentum": momentum, "sync": {"optimiser": {"name": name}}})


def test_bytes_are_those_of_an_optimiser_that_has_stepped(subtests: pytest.Subtests) -> None:
    for name in ["SGD", "Adam", "Adagrad", "RMSprop", "Adafactor"]:
        for momentum in [0.0, 0.9]:
            with subtests.test(momentum=momentum, name=name):
                job = job_with(name, momentum)
                model = build_model(SPEC)
                weights = {key: np.ones(tuple(value.shape), np.float32) for key, value in model.named_parameters()}
                optimiser = HostOptimiser(weights, job.sync.optimiser, 0.1, momentum)
                optimiser.step_all({key: np.ones_like(array) for key, array in weights.items()}, 0.1)
                crossing = join_sums(
                    [a.astype(np.float64) if a.dtype != np.float32 else a for a in optimiser.state().values()]
                )
                assert optimiser_bytes(SPEC, job) == sum(part.nbytes for part in crossing)


def test_of_a_class_of_ones_own_what_it_remembers_counts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    fields = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "optimizer": "mine.py:Three"}
    job = JobConfig.model_validate(fields)
    own = load_plugins(job, tmp_path / "job.yaml").optimizer
    assert optimiser_bytes(SPEC, job, own) == 3 * inspect_load(SPEC, (1, 8, 8)).gradient_bytes


def test_frozen_weights_have_no_gradient_bytes() -> None:
    whole, last = inspect_load(SPEC, (1, 8, 8)), list(build_model(SPEC).named_parameters())[-1]
    one_trained = inspect_load(SPEC, (1, 8, 8), [name for name, _ in build_model(SPEC).named_parameters()][:-1])
    assert one_trained.gradient_bytes == 4 * last[1].numel() < whole.gradient_bytes
    assert one_trained.state_bytes == whole.state_bytes


@pytest.mark.parametrize(("every", "tensors"), [(1, 0), (2, 1), (9, 1)])
def test_momentum_crosses_where_servers_take_the_mean_of_weights(every: int, tensors: int) -> None:
    config = ServersConfig.model_validate(
        {"name": "hall", "servers": [{"name": "a", "array": "a.yaml"}], "reduce_every": every}
    )
    load = inspect_load(SPEC, (1, 8, 8))
    assert load_between(load, job_with("SGD", 0.9), config).optimiser_bytes == tensors * load.gradient_bytes

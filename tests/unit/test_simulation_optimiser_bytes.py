"""What an optimiser remembers, against optimisers that have taken a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from csd_emu.servers import ServersConfig
from firmware_agent.models import ModelSpec, build_model
from host.job import JobConfig
from host.servers.frames import join_sums
from host.simulation.load import inspect_load
from host.simulation.optimiser_bytes import load_between, optimiser_bytes
from host.sync.optimiser import HostOptimiser

SPEC = ModelSpec("digits_cnn")


def job_with(name: str, momentum: float) -> JobConfig:
    fields: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync"}
    return JobConfig.model_validate(fields | {"momentum": momentum, "sync": {"optimiser": {"name": name}}})


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "RMSprop", "Adafactor"])
def test_bytes_are_those_of_an_optimiser_that_has_stepped(name: str, momentum: float) -> None:
    job = job_with(name, momentum)
    model = build_model(SPEC)
    weights = {key: np.ones(tuple(value.shape), np.float32) for key, value in model.named_parameters()}
    optimiser = HostOptimiser(weights, job.sync.optimiser, 0.1, momentum)
    optimiser.step_all({key: np.ones_like(array) for key, array in weights.items()}, 0.1)
    crossing = join_sums([a.astype(np.float64) if a.dtype != np.float32 else a for a in optimiser.state().values()])
    assert optimiser_bytes(SPEC, job) == sum(part.nbytes for part in crossing)


@pytest.mark.parametrize(("every", "tensors"), [(1, 0), (2, 1), (9, 1)])
def test_momentum_crosses_where_servers_take_the_mean_of_weights(every: int, tensors: int) -> None:
    config = ServersConfig.model_validate(
        {"name": "hall", "servers": [{"name": "a", "array": "a.yaml"}], "reduce_every": every}
    )
    load = inspect_load(SPEC, (1, 8, 8))
    assert load_between(load, job_with("SGD", 0.9), config).optimiser_bytes == tensors * load.gradient_bytes

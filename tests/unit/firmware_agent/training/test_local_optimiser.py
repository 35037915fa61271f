"""Any optimiser in the drive: plain torch loops are the yardstick, to the bit."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from firmware_agent.agent import describe_failure
from firmware_agent.clock import Stopwatch
from firmware_agent.common.errors import ModelError, OptimiserFailed
from firmware_agent.common.frames.session_frames import Code, Job, Train
from firmware_agent.common.shard import Shard
from firmware_agent.common.weights import load_arrays, state_arrays
from firmware_agent.training.local_optimiser import make_local_optimiser
from firmware_agent.training.sgd import LocalSgd
from firmware_agent.training.trainer import Trainer
from tests.support.fakes import random_shard

SAMPLES = 50
JOB = Job("digits_cnn", {}, None, 1 / 16, 3, 0.05, 0.9, 8)
OWN = """
import torch

class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr, share=1.0):
        super().__init__(params, {"lr": lr})
        self.share = share

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * self.share * parameter.grad.sign())

class Breaks(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyError("my bug")
"""


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), SAMPLES)


def job(**changes: Any) -> Job:
    return Job(**{name: getattr(JOB, name) for name in Job.__struct_fields__} | changes)


def trainer(shard: Shard, **changes: Any) -> Trainer:
    return Trainer(job(**changes), shard, 1, Stopwatch(lambda: 0.0))


def weights(model: nn.Module) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state_arrays(model).items()}


def plain_loop(
    one: Trainer, shard: Shard, make: Callable[[Any], Any], mu: float = 0.0, clip_norm: float | None = None
) -> dict[str, bytes]:
    """The weights after the same batches by a loop as a user writes it."""
    model = copy.deepcopy(one.model)
    optimiser, start = make(model.parameters()), [p.detach().clone() for p in model.parameters()]
    order = np.random.default_rng([JOB.seed, 1, 1, 0]).permutation(SAMPLES)
    for begin in range(0, SAMPLES, JOB.batch_size):
        index = order[begin : begin + JOB.batch_size]
        images = torch.from_numpy(shard.fields["image"][index]).float() * JOB.input_scale
        loss = nn.functional.cross_entropy(model(images), torch.from_numpy(shard.fields["label"][index]))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter, before in zip(model.parameters(), start, strict=True):
            assert parameter.grad is not None
            parameter.grad += mu * (parameter.detach() - before)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimiser.step()
    return weights(model)


@pytest.mark.parametrize(
    ("code", "make"),
    [
        (Code("Adam"), lambda p: torch.optim.Adam(p, lr=0.05)),
        (
            Code("adamw", None, {"betas": [0.8, 0.9], "weight_decay": 0.1}),
            lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.8, 0.9), weight_decay=0.1),
        ),
        (Code("RMSprop"), lambda p: torch.optim.RMSprop(p, lr=0.05)),
        (Code("SGD", None, {"momentum": 0.9}), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    ],
)
@pytest.mark.parametrize(("mu", "clip_norm"), [(0.0, None), (0.5, None), (0.0, 0.3), (0.5, 0.3)])
def test_an_optimiser_in_the_drive_is_a_plain_torch_loop(
    code: Code, make: Callable[[Any], Any], mu: float, clip_norm: float | None, shard: Shard
) -> None:
    one = trainer(shard, optimiser=code, proximal=mu, clip_norm=clip_norm)
    expected = plain_loop(one, shard, make, mu, clip_norm)
    one.train(Train(1, 1))
    assert weights(one.model) == expected


def test_a_round_does_not_depend_on_the_rounds_before_it(shard: Shard) -> None:
    """What an optimiser remembers is of one round."""
    code = Code("my.py:Signs", OWN, {"share": 0.5})
    for changes in ({"optimiser": Code("Adam")}, {"optimiser": code, "proximal": 0.1}):
        stayed, rejoined = trainer(shard, **changes), trainer(shard, **changes)
        start = {name: array.copy() for name, array in state_arrays(stayed.model).items()}
        stayed.train(Train(1, 1))
        load_arrays(stayed.model, start)
        stayed.train(Train(2, 1))
        rejoined.train(Train(2, 1))
        assert weights(stayed.model) == weights(rejoined.model)


def test_sgd_by_default_is_the_drives_own() -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    assert type(make_local_optimiser(JOB, parameters)) is LocalSgd
    assert type(make_local_optimiser(job(proximal=0.5), parameters)) is LocalSgd


@pytest.mark.parametrize("changes", [{}, {"proximal": 0.5}, {"optimiser": Code("Adam")}])
def test_a_norm_that_no_gradient_reaches_changes_nothing(changes: dict[str, Any], shard: Shard) -> None:
    one, other = trainer(shard, **changes), trainer(shard, clip_norm=1e9, **changes)
    one.train(Train(1, 1))
    other.train(Train(1, 1))
    assert weights(one.model) == weights(other.model)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=5), st.floats(0.125, 100), st.floats(0.125, 1))
def test_a_step_is_as_long_as_the_clipped_gradient_and_points_its_way(
    values: list[float], clip_norm: float, rate: float
) -> None:
    parameter = nn.Parameter(torch.zeros(len(values), dtype=torch.float64))
    parameter.grad = torch.tensor(values, dtype=torch.float64)
    optimiser = make_local_optimiser(job(momentum=0.0, clip_norm=clip_norm), [parameter], rate)
    optimiser.step()
    gradient = np.array(values, np.float64)
    norm = float(np.linalg.norm(gradient))
    expected = -rate * gradient * min(1.0, clip_norm / (norm + 1e-6))
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    optimiser.zero_grad()
    assert parameter.grad is None


@pytest.mark.parametrize("changes", [{}, {"optimiser": Code("Adam")}, {"clip_norm": 0.3}])
def test_a_rounds_rate_is_the_jobs_of_a_job_with_that_rate(changes: dict[str, Any], shard: Shard) -> None:
    one, other = trainer(shard, **changes), trainer(shard, learning_rate=0.01, **changes)
    one.train(Train(1, 1, learning_rate=0.01))
    other.train(Train(1, 1))
    assert weights(one.model) == weights(other.model)
    before = weights(one.model)
    one.train(Train(2, 1, learning_rate=0.0))
    assert weights(one.model) == before


@pytest.mark.parametrize("changes", [{}, {"optimiser": Code("Adam"), "clip_norm": 1.0, "proximal": 0.1}])
def test_frozen_parameters_stay_and_all_others_move(changes: dict[str, Any], shard: Shard) -> None:
    one = trainer(shard, freeze=["0.*", "*.bias"], **changes)
    before = weights(one.model)
    one.train(Train(1, 1))
    moved = {name for name, value in weights(one.model).items() if value != before[name]}
    assert moved == {name for name in before if not name.startswith("0.") and not name.endswith(".bias")}


@pytest.mark.parametrize(
    ("freeze", "match"),
    [(["zero.*"], "freeze: 'zero.*' matches no parameter; near it are"), (["*.bias", "*"], "leave no parameter to")],
)
def test_patterns_that_make_no_sense_are_refused(freeze: list[str], match: str, shard: Shard) -> None:
    with pytest.raises(ModelError, match=match.replace("*", r"\*")):
        trainer(shard, freeze=freeze)


def test_an_optimiser_of_ones_own_is_called_and_its_errors_are_its_own(shard: Shard) -> None:
    one = trainer(shard, optimiser=Code("my.py:Signs", OWN, {"share": 0.5}))
    before = {name: array.copy() for name, array in state_arrays(one.model).items()}
    steps = one.train(Train(1, 1, learning_rate=0.25)).steps
    for name, array in state_arrays(one.model).items():
        moved = (array - before[name]) / 0.125
        np.testing.assert_allclose(moved, np.round(moved), atol=1e-4)
        assert 0 < np.abs(moved).max() <= steps + 1e-4
    with pytest.raises(OptimiserFailed, match=r"^KeyError: 'my bug'$") as error:
        trainer(shard, optimiser=Code("my.py:Breaks", OWN)).train(Train(1, 1))
    failed = describe_failure("Train", error.value)
    assert (failed.exception, failed.error, failed.user) == ("OptimiserFailed", "KeyError: 'my bug'", True)
    assert 'File "my.py", line 17, in step' in failed.traceback
    with pytest.raises(ModelError, match=r"optimizer 'my.py:None_': cannot be imported"):
        trainer(shard, optimiser=Code("my.py:None_", OWN)).train(Train(1, 1))

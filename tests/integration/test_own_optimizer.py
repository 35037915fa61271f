"""Training of any form on native drives: an optimiser, a schedule and first weights of one's own, in both modes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
CODE = """
import torch
from torch import nn


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


class SignDescent(torch.optim.Optimizer):
    def __init__(self, params, lr, decay=0.0, shares=(1.0, 1.0), fails_at=0):
        super().__init__(params, {"lr": lr, "decay": decay, "share": shares[0]})
        self.fails_at, self.count = fails_at, 0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        if self.count == self.fails_at:
            raise KeyError("my bug")
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group["decay"]).sub_(group["lr"] * group["share"] * p.grad.sign())


def falls(step, steps, share=1.0):
    assert 0 <= step < steps
    return share**step


def ends(step, steps):
    return 1.0 if step < 2 else float("nan")


def no_optimiser(params, lr):
    return 3
"""
JOB: dict[str, Any] = {
    "model": "own.py:net",
    "data": {"source": "./table.npz"},
    "optimizer": {"name": "own.py:SignDescent", "decay": 0.01, "shares": [0.5, 1.0]},
    "schedule": {"name": "own.py:falls", "share": 0.5},
    "clip_norm": 1.0,
    "freeze": ["0.*"],
    "initial_weights": "first.pt",
    "rounds": 3,
    "batch_size": 8,
}
SYNC: dict[str, Any] = {"mode": "sync", "sync": {"round_steps": 5}}


@pytest.fixture
def own(workshop: Workshop) -> Workshop:
    """A workshop with code, a table, and weights of the model."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((200, 6)).astype(np.float32)
    y = x @ generator.standard_normal((6, 1)).astype(np.float32)
    np.savez(workshop.folder / "table.npz", x=x, y=y, test_x=x[:40], test_y=y[:40])
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    torch.save(model.state_dict(), workshop.folder / "first.pt")
    workshop.write("own.py", CODE)
    return workshop


def run(own: Workshop, csd_emu: Command, job: dict[str, Any]) -> Done:
    return csd_emu("run", own.write("job.yaml", job), "--array", own.array, "--runs", own.runs, "--json")


@pytest.mark.parametrize("mode", [{}, SYNC])
def test_a_run_with_all_of_it_learns_and_goes_on_as_it_would_have(
    mode: dict[str, Any], own: Workshop, csd_emu: Command
) -> None:
    done = run(own, csd_emu, JOB | mode)
    assert done.code == 0, done.err
    first = torch.load(own.folder / "first.pt", weights_only=True)
    whole = load_file(own.run_directory() / "model.safetensors")
    for name, array in whole.items():
        assert np.array_equal(array, first[name].numpy()) == name.startswith("0."), name
    losses = [record["test_loss"] for record in own.rounds()]
    assert losses == sorted(losses, reverse=True)
    # Every step moves a weight by the rate times the sign, the decay aside.
    steps = [len(each["steps"]) or max(device["steps"] for device in each["devices"]) for each in own.rounds()]
    factors = [0.5 ** (sum(steps[:number]) if mode else number) for number in range(3)]
    assert 0 < np.abs(whole["2.bias"] - first["2.bias"].numpy()).max() <= 0.5 * 0.05 * np.dot(steps, factors) * 1.1
    weights = (own.run_directory() / "model.safetensors").read_bytes()
    own.runs.rename(own.folder / "whole")
    assert run(own, csd_emu, JOB | mode | {"rounds": 1}).code == 0
    directory = own.run_directory()
    job = (directory / "job.yaml").read_text()
    (directory / "job.yaml").write_text(job.replace("rounds: 1", "rounds: 3"))
    (own.folder / "own.py").unlink()  # the run directory has it
    done = csd_emu("run", "--resume", directory, "--json")
    assert done.code == 0, done.err
    assert (directory / "model.safetensors").read_bytes() == weights
    (directory / "job.yaml").write_text(job.replace("rounds: 1", "rounds: 4"))
    torch.save({name: tensor + 1 for name, tensor in first.items()}, own.folder / "first.pt")
    done = csd_emu("run", "--resume", directory)
    assert (done.code, "is of another job" in done.err) == (2, True), done.err
    own.assert_clean()


def test_an_optimiser_that_fails_is_named_with_its_line(own: Workshop, csd_emu: Command) -> None:
    line = 1 + CODE.splitlines().index('            raise KeyError("my bug")')
    for mode, where in (({}, "the optimizer failed on csd-0"), (SYNC, "the optimizer failed on host")):
        done = run(own, csd_emu, JOB | mode | {"optimizer": {"name": "own.py:SignDescent", "fails_at": 3}})
        assert done.code == 1
        assert f'File "own.py", line {line}, in step' in done.err
        assert where in done.err
        assert "KeyError: 'my bug'" in done.err
    own.assert_clean()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": {"name": "own.py:SignDescent", "dcay": 1}}, "optimizer.dcay: unknown key; did you mean 'decay'"),
        ({"optimizer": {"name": "Adam", "beta": 1}}, "optimizer.beta: Adam does not take it; did you mean 'betas'"),
        ({"optimizer": "adamm"}, "torch.optim has no 'adamm'; did you mean 'Adam'"),
        ({"optimizer": "LBFGS"}, "LBFGS cannot be used"),
        ({"optimizer": "own.py:no_optimiser"}, "made is a int, no torch.optim.Optimizer"),
        ({"optimizer": {"name": "own.py:SignDescent", "shares": 3}}, "TypeError"),
        (
            {"optimizer": {"name": "own.py:SignDescent", "fails_at": 1}},
            "a step failed: KeyError: 'my bug' (own.py, line",
        ),
        ({"optimiser": "Adam"}, "optimizer"),
        (SYNC | {"sync": {"optimiser": {"name": "Adam"}}}, "optimizer and sync.optimiser are the same key"),
        (SYNC | {"sync": {"clip_norm": 1.0}}, "clip_norm and sync.clip_norm are the same key"),
        ({"schedule": "own.py:ends"}, "schedule 'own.py:ends': step 2 of 3 (the first is 0): returned nan"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"schedule": "step"}, "schedule.step.every"),
        ({"freeze": ["1.*"]}, "freeze: '1.*' matches no parameter"),
        ({"freeze": ["*"]}, "leave no parameter to train"),
        ({"initial_weights": "table.npz"}, "is no safetensors file and no torch state dict"),
        ({"initial_weights": "none.pt"}, "cannot be read"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(
    changes: dict[str, Any], message: str, own: Workshop, csd_emu: Command
) -> None:
    done = run(own, csd_emu, JOB | changes)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert not own.runs.exists()
    own.assert_clean()

"""Client programs in the drive: state, also given back by the host, and what is held to the trial."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from firmware_agent.clock import Stopwatch
from firmware_agent.common.clients.client_program import EXTRA, STATE
from firmware_agent.common.errors import ModelError
from firmware_agent.common.frames.session_frames import Code, Job, Train
from firmware_agent.common.shard import Shard
from firmware_agent.common.slices import Array, tensor_specs
from firmware_agent.common.weights import load_arrays, state_arrays
from firmware_agent.training.local_pass import LocalPass
from firmware_agent.training.trainer import NOTHING_MORE, Trainer
from tests.support.fakes import random_shard

JOB: dict[str, Any] = {
    **{"model": "digits_cnn", "arguments": {}, "source": None, "input_scale": 1 / 16, "seed": 3},
    **{"learning_rate": 0.05, "momentum": 0.9, "batch_size": 8},
}
COUNTS = """
import torch

def train(model, state, csd, fails_in=0):
    assert model.training and all(weight.grad is None for weight in model.parameters())
    csd.fit()
    state["rounds"] = state.get("rounds", 0) + 1
    state["sum"] = state.get("sum", torch.zeros(2))
    state["sum"] += csd.number
    state["last"] = next(iter(model.parameters())).detach()
    if csd.number == fails_in:
        raise KeyError("my bug")
    model.eval()
    return {"rounds": state["rounds"], "sum": state["sum"]}
"""


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return random_shard(tmp_path_factory.mktemp("shard"), 20)


def trainer(shard: Shard, text: str = COUNTS, returns: Mapping[str, Array] = NOTHING_MORE, **options: Any) -> Trainer:
    more: dict[str, Any] = {"returns": tensor_specs(returns), "metrics": ["rounds"]}
    return Trainer(Job(**JOB, client=Code("mine.py:train", text, options), **more), shard, 1, Stopwatch())


def rounds(mine: Trainer, numbers: list[int], received: Mapping[str, Array] = NOTHING_MORE) -> list[LocalPass]:
    done = []
    for number in numbers:
        done.append(mine.train(Train(number, 1), received))
        received = NOTHING_MORE
    return done


def told(done: LocalPass) -> tuple[dict[str, bytes], dict[str, float], dict[str, bytes]]:
    assert done.reply is not None
    arrays, state = ({n: a.tobytes() for n, a in each.items()} for each in (done.reply.arrays, done.state))
    return arrays, done.reply.metrics, state


def test_a_drive_that_gets_its_state_back_goes_on_as_it_would_have(shard: Shard) -> None:
    whole, begun, resumed = trainer(shard), trainer(shard), trainer(shard)
    last = rounds(whole, [1, 2, 3])[-1]
    middle = rounds(begun, [1, 2])[-1]
    kept = {name: array.copy() for name, array in middle.state.items()}
    load_arrays(resumed.model, {name: array.copy() for name, array in state_arrays(begun.model).items()})
    (again,) = rounds(resumed, [3], kept)
    assert told(again) == told(last)
    assert again.reply is not None
    assert again.reply.metrics == {"rounds": 3.0}
    assert again.state.keys() == {STATE + name for name in ("rounds", "sum", "last")}


def test_of_a_round_that_fails_no_state_is_kept(shard: Shard) -> None:
    mine = trainer(shard, fails_in=2)
    rounds(mine, [1])
    with pytest.raises(KeyError):
        rounds(mine, [2])
    (third,) = rounds(mine, [3])
    assert third.reply is not None
    assert third.reply.metrics == {"rounds": 2.0}
    assert third.reply.extras["sum"].tolist() == [4.0, 4.0]


def test_what_is_kept_is_not_the_models_own_memory(shard: Shard) -> None:
    mine = trainer(shard)
    (done,) = rounds(mine, [1])
    before = done.state[STATE + "last"].copy()
    with torch.no_grad():
        for weight in mine.model.parameters():
            weight.zero_()
    assert np.array_equal(mine._client._state["last"], before)  # type: ignore[union-attr]


def test_tensors_come_in_the_order_of_the_trial_and_others_are_refused(shard: Shard) -> None:
    text = "import torch\ndef train(csd, names='ab'):\n    return {name: torch.ones(2) for name in names}"
    expected = {EXTRA + "b": np.ones(2, np.float32), EXTRA + "a": np.ones(2, np.float32)}
    (done,) = rounds(trainer(shard, text, expected), [1])
    assert done.reply is not None
    assert list(done.reply.arrays) == list(expected)
    for names, message in (
        ("abc", r"returned c as float32\[2\], in its trial.*none that depends on how many"),
        ("a", "returned b as nothing"),
    ):
        with pytest.raises(ModelError, match=message):
            rounds(trainer(shard, text, expected, names=names), [1])

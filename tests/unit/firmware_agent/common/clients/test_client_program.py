"""Client programs: what they are given, what they may return, and the built-in ones against plain torch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from csd_lab.bench.drive.client_rounds import largest_difference, plain_scaffold, run_client_rounds
from firmware_agent.clock import Stopwatch
from firmware_agent.common.clients.built_in_clients import GIVEN
from firmware_agent.common.clients.client_program import EXTRA, ClientProgram
from firmware_agent.common.clients.client_round import ClientRecords, ClientRound, NoWatch
from firmware_agent.common.errors import ModelError
from firmware_agent.common.losses.objective import Objective, ObjectiveSpec
from firmware_agent.common.shipped_code import ShippedCode
from firmware_agent.common.weights import state_arrays
from firmware_agent.training.sgd import LocalSgd
from host.config.plugins.kinds import CLIENT
from host.policies.aggregation import FedAvg
from host.policies.aggregation.scaffold import Scaffold
from tests.support.examples import examples

OBJECTIVE = Objective.of_spec(ObjectiveSpec(ShippedCode("mean_squared_error"), ("x",), 1.0))
X = np.arange(20, dtype=np.float32).reshape(10, 2)
COLUMNS = {"x": X, "y": X @ np.array([[1.0], [-1.0]], np.float32)}


def program(text: str, **options: Any) -> ClientProgram:
    return ClientProgram.load(ShippedCode("mine.py:train", text, options))


def begun(model: nn.Module | None = None, watch: Any = None, resident: bool = True, epochs: int = 1) -> ClientRound:
    model, passes = model or nn.Linear(2, 1), count()
    records = ClientRecords(
        lambda places: {name: column[places] for name, column in COLUMNS.items()},
        lambda: np.roll(np.arange(10), next(passes)),
        *(10, resident),
    )
    return ClientRound(
        *(1, model, OBJECTIVE, records, (epochs, 4)),
        *(lambda: LocalSgd(model.parameters(), 1e-3, 0.9), watch or NoWatch()),
    )


def run(text: str, state: dict[str, Any] | None = None, **received: Any) -> Any:
    return program(text).run(begun(), {"learning_rate": 0.1}, received, {} if state is None else state)


def test_a_program_that_returns_nothing_returns_the_model_as_it_left_it() -> None:
    round_ = begun()
    reply = program("def train(csd):\n    csd.fit()").run(round_, {}, {}, {})
    assert reply.weights.keys() == state_arrays(round_.model).keys()
    assert all(np.array_equal(reply.weights[n], a) for n, a in state_arrays(round_.model).items())
    assert (round_.samples, round_.steps, reply.extras, reply.metrics) == (10, 3, {}, {})


def test_numbers_are_metrics_tensors_of_the_model_are_weights_and_all_others_are_extras() -> None:
    reply = run(
        "import torch\n"
        "def train(model, received, config):\n"
        "    return {'bias': model.bias + received['shift'], 'more': torch.ones(3), 'loss': 0.5, 'seen': 2,\n"
        "            'rate': config['learning_rate']}",
        shift=np.array([2.0], np.float32),
    )
    assert list(reply.weights) == ["bias"]
    assert reply.arrays.keys() == {"bias", EXTRA + "more"}
    assert reply.metrics == {"loss": 0.5, "seen": 2.0, "rate": 0.1}


def test_state_stays_from_round_to_round_and_options_are_those_of_the_job() -> None:
    text = "def train(state, step=1):\n    state['n'] = state.get('n', 0) + step\n    return {'n': state['n']}"
    mine, state = program(text, step=3), dict[str, Any]()
    assert [mine.run(begun(), {}, {}, state).metrics["n"] for _ in range(3)] == [3, 6, 9]
    assert mine.state_arrays(state, nn.Linear(2, 1))["n"] == 9


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def train():\n    return 3", "returned int; return a mapping"),
        ("def train():\n    return {3: 4.0}", "3 is no name"),
        ("def train():\n    return {'a': 'text'}", "a is str of"),
        ("def train():\n    return {'a': float('nan')}", "returned a = nan"),
        ("import torch\ndef train():\n    return {'bias': torch.ones(2)}", r"returned bias as float32\[2\], the model"),
        ("import torch\ndef train():\n    return {'a': torch.ones(2).bfloat16()}", "cannot cross the wire"),
        ("def train():\n    return {str(n): n for n in range(65)}", "returned 65 numbers"),
        (
            "def train(csd):\n    with csd.phase('lunch'):\n        pass",
            "'lunch' is no phase; name one of forward, backward",
        ),
    ],
)
def test_what_a_program_may_not_return_is_refused_and_names_it(text: str, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        run(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def train(models): pass", "takes 'models', which is neither given nor an option"),
        ("train = 3", "which cannot be called|not callable"),
        ("def other(): pass", "cannot be imported"),
        ("import nowhere_at_all", "cannot be imported"),
    ],
)
def test_a_program_that_cannot_be_run_is_refused_when_it_is_loaded(text: str, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        program(text)


def test_more_state_than_a_drive_may_keep_is_refused() -> None:
    mine = program("def train(): pass")
    with pytest.raises(ModelError, match=r"keeps \d+ bytes in state, at most 67108864"):
        mine.state_arrays({"a": np.zeros((64 << 20) + 1, np.uint8)}, nn.Linear(2, 1))


def test_more_beside_the_weights_than_is_taken_is_refused() -> None:
    with pytest.raises(ModelError, match=r"returned 67108865 bytes beside the weights, at most 67108864 are taken"):
        run("import torch\ndef train():\n    return {'a': torch.zeros((64 << 20) + 1, dtype=torch.uint8)}")
    assert run("import torch\ndef train():\n    return {'a': torch.zeros(64 << 20, dtype=torch.uint8)}").extras


def test_gradients_reach_the_tensors_of_a_batch_through_the_model() -> None:
    round_ = begun()
    x = torch.from_numpy(X.copy()).requires_grad_()
    batch = {"x": x, "y": torch.from_numpy(COLUMNS["y"])}
    assert round_.inputs(batch) is x
    round_.loss(batch).backward()  # type: ignore[no-untyped-call]
    away = round_.model(x) - batch["y"]
    torch.testing.assert_close(x.grad, 2 / len(X) * away.detach() * round_.model.weight.detach())


def clock() -> Iterator[float]:
    seconds = 0.0
    while True:
        yield seconds
        seconds += 1.0


def test_what_is_not_marked_is_one_phase_and_phases_may_be_nested() -> None:
    watch = Stopwatch(clock().__next__)
    round_ = begun(watch=watch)
    watch.mark()
    with round_.phase("backward"), round_.phase("forward"):
        pass
    watch.lap("update")
    seconds = watch.take()
    assert (seconds.forward, seconds.backward, seconds.update) == (1.0, 2.0, 2.0)


def test_reading_from_flash_is_no_time_of_the_program() -> None:
    laps = {}
    for resident in (True, False):
        watch = Stopwatch(clock().__next__)
        for _ in begun(watch=watch, resident=resident).loader:
            pass
        watch.lap("update")
        laps[resident] = watch.take().total
    assert laps[False] > 0
    assert laps[True] == 1.0  # nobody looked at the clock


@given(st.integers(1, 3), st.integers(1, 12))
@settings(max_examples=examples(20))
def test_passes_have_every_record_once_each_in_an_order_of_its_own(epochs: int, size: int) -> None:
    round_ = begun(epochs=epochs)
    batches = list(round_.loader.passes(epochs, size))
    seen = np.concatenate([batch["x"].numpy() for batch in batches])[:, 0]
    passes = seen.reshape(epochs, 10)
    assert all(np.array_equal(np.sort(each), X[:, 0]) for each in passes)
    assert len({each.tobytes() for each in passes}) == epochs
    assert (round_.samples, round_.steps) == (10 * epochs, epochs * -(-10 // size))


def test_the_registry_says_what_programs_are_given() -> None:
    assert CLIENT.given is GIVEN
    for name in CLIENT.built_in:
        taken = inspect.signature(CLIENT.load(name).__call__).parameters.keys() - {"self"}
        assert taken <= GIVEN.keys(), name


def shards(seed: int, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    true = generator.standard_normal((3, 2))
    made = []
    for number, size in enumerate(sizes):
        x = generator.standard_normal((size, 3)) + number
        made.append({"x": x, "y": x @ true + 0.1 * generator.standard_normal((size, 2))})
    return made


CONFIG: Mapping[str, float] = {"batch_size": 4, "learning_rate": 0.01}


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(4, 15), min_size=2, max_size=4))
@settings(max_examples=examples(20))
def test_scaffold_is_what_plain_torch_makes_of_the_papers_algorithm(seed: int, sizes: list[int]) -> None:
    torch.manual_seed(seed % 2**31)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = shards(seed, tuple(sizes))
    strategy = Scaffold(parameters=[name for name, _ in model.named_parameters()])
    ours = run_client_rounds(ShippedCode("scaffold"), strategy, model, data, CONFIG, 4)
    assert largest_difference(ours, plain_scaffold(model, data, CONFIG, 4)) < 1e-12


def test_scaffold_finds_the_minimum_of_all_drives_where_fedavg_does_not() -> None:
    data = shards(1, (16, 16))
    for part, scale in zip(data, (1.0, 4.0), strict=True):
        part["y"] = part["y"] * scale
    model = nn.Linear(3, 2, bias=False).double()
    x, y = (np.concatenate([each[name] for each in data]) for name in ("x", "y"))
    best = {"weight": np.linalg.lstsq(x, y, rcond=None)[0].T}
    code = ShippedCode("mine.py:train", "def train(csd):\n    csd.fit()")
    averaged = run_client_rounds(code, FedAvg(), model, data, CONFIG, 400)
    corrected = run_client_rounds(ShippedCode("scaffold"), Scaffold(parameters=["weight"]), model, data, CONFIG, 400)
    assert largest_difference(corrected, best) < 0.3 * largest_difference(averaged, best)


def test_fedbn_keeps_normalisation_in_the_drive() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    state: dict[str, Any] = {}
    fedbn = ClientProgram.load(ShippedCode("fedbn"))
    reply = fedbn.run(begun(copy.deepcopy(model)), {}, {}, state)
    assert {name.partition(".")[0] for name in reply.arrays} == {"0", "2"}
    assert state.keys() == {f"1.{name}" for name in model[1].state_dict()}
    again = copy.deepcopy(model)
    fedbn.run(begun(again, epochs=0), {}, {}, state)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in state.items())
    assert Scaffold.client in CLIENT.built_in

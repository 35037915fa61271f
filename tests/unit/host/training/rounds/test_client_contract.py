"""What a strategy may say to drives, how it crosses, and what a client program may return."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_agent.common.clients.client_program import EXTRA, STATE
from firmware_agent.common.errors import PluginFailed, ProtocolError
from firmware_agent.common.frames.session_frames import Code, Slice, Tensors, Train
from firmware_agent.common.slices import Assembler, tensor_specs
from firmware_agent.common.wire import encode, unpack
from host.training.rounds.client_contract import (
    AS_USUAL,
    ClientContract,
    Instruction,
    RoundMessages,
    encoded_bytes,
    read_instructions,
)
from tests.support.examples import examples
from tests.support.fakes import JOB

DRIVES = ("csd-00", "csd-01")
numbers = st.integers(-100, 100) | st.floats(-100, 100) | st.text(max_size=9) | st.booleans()
config = st.dictionaries(st.text("abc", min_size=1, max_size=4), numbers, max_size=4)


def frames(messages: list[bytes]) -> list[Any]:
    return [frame for message in messages for frame in unpack(message)]


@settings(max_examples=examples(40))
@given(config, st.lists(st.integers(1, 5), max_size=3), st.integers(1, 9))
def test_what_a_strategy_says_comes_to_the_drive_as_it_was_said(
    said: dict[str, Any], sizes: list[int], epochs: int
) -> None:
    tensors = {f"t{number}": np.arange(size, dtype=np.float32) for number, size in enumerate(sizes)}
    state = {STATE + "kept": np.ones(2)}
    weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    told = read_instructions({"csd-01": {**said, **tensors, "epochs": epochs}}, DRIVES, "mine", True)
    assert list(told) == ["csd-01"]
    messages = RoundMessages(weights, Train(3, 1, learning_rate=0.5))
    announced, *pieces, task = frames(messages.of(told["csd-01"], state))
    assert isinstance(announced, Tensors)
    whole = Assembler(3, announced.specs)
    for piece in pieces:
        assert isinstance(piece, Slice)
        whole.add(piece)
    wanted = weights | {EXTRA + name: array for name, array in tensors.items()} | state
    assert {name: array.tobytes() for name, array in whole.arrays().items()} == {
        name: array.tobytes() for name, array in wanted.items()
    }
    assert task == Train(3, epochs, learning_rate=0.5, config={**said, "epochs": epochs})


def test_whoever_is_told_nothing_gets_the_usual_messages() -> None:
    messages = RoundMessages({"w": np.zeros(2, np.float32)}, Train(1, 2))
    assert messages.of(AS_USUAL, {}) is messages.of(AS_USUAL, {})
    assert frames(messages.of(AS_USUAL, {}))[-1] == Train(1, 2)
    assert messages.of(Instruction(), {}) is messages.of(AS_USUAL, {})
    slower = frames(messages.of(Instruction({"learning_rate": 0.25}), {}))[-1]
    assert (slower.learning_rate, slower.epochs) == (0.25, 2)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, "returned NoneType"),
        ({}, "returned nobody"),
        ({"csd-02": {}}, "names 'csd-02'; the drives are csd-00, csd-01"),
        ({"csd-00": 3}, "of csd-00, returned int"),
        ({"csd-00": {3: 4}}, "3 is no name"),
        ({"csd-00": {"epochs": 1.5}}, "'epochs' is 1.5; make it a whole number, 1 to 10000"),
        ({"csd-00": {"epochs": True}}, "'epochs' is True"),
        ({"csd-00": {"batch_size": 0}}, "'batch_size' is 0; make it a whole number, 1 to 65536"),
        ({"csd-00": {"learning_rate": "fast"}}, "'learning_rate' is 'fast'; make it a number"),
        ({"csd-00": {"a": np.array(["text"])}}, "'a' is <U4; give numbers"),
        ({"csd-00": {"a": np.array([np.nan])}}, "'a' has values that are no finite numbers"),
        ({"csd-00": {"a": 2**63}}, "'a' is too large a number"),
        ({"csd-00": {"a": float("inf")}}, "'a' is no finite number"),
        ({"csd-00": {"a": "x" * 5000}}, "'a' is longer than a text may be"),
        ({"csd-00": {f"a{number}": 1 for number in range(65)}}, "65 entries; at most 64"),
    ],
)
def test_what_cannot_be_said_is_refused(said: Any, message: str) -> None:
    with pytest.raises(PluginFailed, match=message):
        read_instructions(said, DRIVES, "mine", True)


def test_without_a_client_program_nobody_hears_more_than_the_settings() -> None:
    read_instructions({"csd-00": {"epochs": 2, "learning_rate": 0.1}}, DRIVES, "mine", False)
    with pytest.raises(PluginFailed, match="'mu' is heard by no drive"):
        read_instructions({"csd-00": {"mu": 2}}, DRIVES, "mine", False)


def test_a_drive_may_return_what_the_trial_showed_and_its_state_up_to_a_bound() -> None:
    weights = {"w": np.zeros(4, np.float32)}
    contract = ClientContract(Code("mine.py:train"), tuple(tensor_specs({"w": weights["w"], "extra/c": np.zeros(2)})))
    assert ClientContract.of(contract.added_to(JOB)) == contract
    assert ClientContract.of(JOB) is None
    told = ClientContract(Code("mine.py:train"), (), ("a", "b", "c")).believed({"a": 1.0, "b": math.nan, "new": 2.0})
    assert told == {"a": 1.0}
    state = tensor_specs({STATE + "mine": np.zeros(3)})
    assert contract.expected(state, weights) == [*contract.returns, *state]
    large = tensor_specs({STATE + "mine": np.broadcast_to(np.float64(0), (9 << 20,))})
    with pytest.raises(ProtocolError, match="bytes of state, at most 67108864 are taken"):
        contract.expected(large, weights)


@settings(max_examples=examples(20))
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_what_state_takes_of_an_exchange_is_what_it_adds_to_its_frames(sizes: list[int]) -> None:
    weights = {"w": np.zeros(5, np.float32)}
    state = {f"{STATE}{number}": np.ones(size) for number, size in enumerate(sizes)}
    messages = RoundMessages(weights, Train(7, 1))
    with_state, without = (
        sum(len(encode(frame)) for frame in frames(messages.of(AS_USUAL, each))) for each in (state, {})
    )
    assert encoded_bytes(7, state) == with_state - without

"""Exchanges within a round, the drive's end: what crosses, what is refused, and what time counts."""

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firmware_agent.clock import Stopwatch
from firmware_agent.common.clients.client_round import EXCHANGED, MOST_EXCHANGES
from firmware_agent.common.errors import ModelError, ProtocolError
from firmware_agent.common.frames.session_frames import Exchange, Ready, Slice, Tensors
from firmware_agent.common.slices import Array, Assembler, cut_slices, tensor_specs
from firmware_agent.common.wire import unpack
from firmware_agent.training.client_exchange import ClientExchange
from tests.support.examples import examples

arrays = st.dictionaries(
    st.text("ab", min_size=1, max_size=3),
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0), elements=st.floats(-(2.0**126), 2.0**126, width=32)),
    min_size=1,
    max_size=3,
)


class Mirror:
    """A host that answers with twice what came."""

    def __init__(self) -> None:
        self.frames: deque[Any] = deque()
        self.coming: Assembler | None = None

    def send(self, message: bytes) -> None:
        for frame in unpack(message):
            if isinstance(frame, Tensors):
                self.coming = Assembler(frame.exchange, frame.specs)
            elif isinstance(frame, Slice):
                assert self.coming is not None
                self.coming.add(frame)
            else:
                assert isinstance(frame, Exchange)
                assert self.coming is not None
                back = {name.removeprefix(EXCHANGED): a + a for name, a in self.coming.arrays().items()}
                number = self.coming.exchange
                self.frames += [Tensors(number, tensor_specs(back)), *cut_slices(number, back), frame]


def begun(host: Mirror, given: dict[str, Array], now: Any = lambda: 0.0) -> ClientExchange:
    exchange = ClientExchange(host.send, host.frames.popleft, Stopwatch(now))
    exchange.begin(3, tensor_specs({EXCHANGED + name: array for name, array in given.items()}))
    return exchange


@settings(max_examples=examples(40))
@given(arrays, st.integers(1, 3))
def test_what_is_given_comes_and_the_answer_comes_back(given_: dict[str, Array], times: int) -> None:
    exchange = begun(Mirror(), given_)
    for _ in range(times):
        answer = exchange(given_)
        with np.errstate(over="ignore"):
            assert {n: a.tobytes() for n, a in answer.items()} == {n: (a + a).tobytes() for n, a in given_.items()}


def test_other_tensors_than_in_the_trial_and_too_many_exchanges_are_refused() -> None:
    one = {"x": np.zeros(3, np.float32)}
    exchange = begun(Mirror(), one)
    with pytest.raises(ModelError, match=r"gave y float32\[3\].*on the host: x float32\[3\]"):
        exchange({"y": one["x"]})
    exchange = begun(Mirror(), one)
    for _ in range(MOST_EXCHANGES):
        exchange(one)
    with pytest.raises(ModelError, match=f"at most {MOST_EXCHANGES}"):
        exchange(one)


def test_a_frame_that_is_no_answer_ends_the_session() -> None:
    host, one = Mirror(), {"x": np.zeros(3, np.float32)}
    exchange = begun(host, one)
    host.frames.append(Ready(3))
    with pytest.raises(ProtocolError, match="sent Ready where the answer"):
        exchange(one)


def test_waiting_for_the_others_is_no_device_time() -> None:
    times = iter([0.0, 0.0, 2.0, 100.0, 101.0])
    one = {"x": np.zeros(3, np.float32)}
    stopwatch = Stopwatch(lambda: next(times))
    host = Mirror()
    exchange = ClientExchange(host.send, host.frames.popleft, stopwatch)
    exchange.begin(1, tensor_specs({EXCHANGED + "x": one["x"]}))
    stopwatch.mark()
    exchange(one)
    stopwatch.lap("update")
    seconds = stopwatch.take()
    assert (seconds.encode, seconds.update) == (2.0, 1.0)

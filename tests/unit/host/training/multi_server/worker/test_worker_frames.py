"""Frames between a host and its worker."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.slices import Array
from host.training.multi_server.worker import worker_frames as frames
from host.training.multi_server.worker.worker_frames import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    FromHost,
    FromWorker,
    GiveState,
    State,
    StateTurn,
    Taken,
    TakeState,
    encode,
    from_host,
    from_worker,
    header_bytes,
    join_sums,
    payload_bytes,
    split_sums,
)
from tests.support.examples import examples

COUNTS = st.integers(0, 2**40)
HOST_FRAMES = st.one_of(
    st.builds(StateTurn, COUNTS, COUNTS, st.integers(0, 2), st.binary(max_size=50), COUNTS, COUNTS),
    st.builds(State, COUNTS),
)
METAS = st.dictionaries(st.text(max_size=9), st.binary(max_size=20), max_size=4)
WORKER_FRAMES = st.one_of(
    st.builds(Taken, METAS, COUNTS, COUNTS),
    st.builds(TakeState, st.text(max_size=9), COUNTS),
    st.just(GiveState()),
)
DTYPES = st.sampled_from(["<f4", "<f8", "<i8", "<f2"])
TENSORS = st.lists(
    DTYPES.flatmap(
        lambda dtype: (
            arrays.arrays(
                np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements={}
            )
            if dtype == "<i8"
            else arrays.arrays(
                np.dtype(dtype),
                arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
                elements={"allow_nan": False, "allow_infinity": False},
            )
        )
    ),
    max_size=5,
)


@given(HOST_FRAMES)
def test_what_a_host_says_comes_back(frame: FromHost) -> None:
    content = encode(frame)
    assert header_bytes(content[:LENGTH_BYTES]) == len(content) - LENGTH_BYTES
    assert from_host(content[LENGTH_BYTES:]) == frame


@given(WORKER_FRAMES)
def test_what_a_worker_says_comes_back(frame: FromWorker) -> None:
    content = encode(frame)
    assert header_bytes(content[:LENGTH_BYTES]) == len(content) - LENGTH_BYTES
    assert from_worker(content[LENGTH_BYTES:]) == frame


@given(HOST_FRAMES, WORKER_FRAMES)
def test_neither_takes_what_is_the_others_to_say(host: FromHost, worker: FromWorker) -> None:
    with pytest.raises(ProtocolError, match="same csd-emu"):
        from_worker(encode(host)[LENGTH_BYTES:])
    with pytest.raises(ProtocolError, match="same csd-emu"):
        from_host(encode(worker)[LENGTH_BYTES:])


@given(st.binary(max_size=40))
@example(b"")
@example(b"\x80")
def test_rubbish_is_a_frame_or_is_refused(content: bytes) -> None:
    for decode in (from_host, from_worker):
        with contextlib.suppress(ProtocolError):
            assert isinstance(decode(content), FromHost | FromWorker)


@pytest.mark.parametrize("field", ["step", "turn", "stage", "singles", "doubles"])
def test_no_count_is_below_zero(field: str) -> None:
    content = encode(StateTurn(**({"step": 1, "turn": 0, "stage": 0} | {field: -1})))
    with pytest.raises(ProtocolError):
        from_host(content[LENGTH_BYTES:])


@given(st.integers(MAX_HEADER_BYTES - 3, MAX_HEADER_BYTES + 3))
def test_a_header_has_a_limit(size: int) -> None:
    prefix = size.to_bytes(LENGTH_BYTES, "little")
    if size <= MAX_HEADER_BYTES:
        assert header_bytes(prefix) == size
    else:
        with pytest.raises(ProtocolError, match=str(size)):
            header_bytes(prefix)


@settings(max_examples=examples(50))
@given(TENSORS)
def test_sums_come_apart_as_they_were_joined(tensors: list[Array]) -> None:
    single, double = join_sums(tensors)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    assert len(single) + len(double) == sum(array.size for array in tensors)
    payload = np.frombuffer(bytearray(single.tobytes() + double.tobytes()), np.uint8)
    frame = StateTurn(1, 0, 1, b"", len(single), len(double))
    assert payload_bytes(frame) == len(payload)
    back = split_sums(payload, frame.singles)
    np.testing.assert_array_equal(back[0], single)
    np.testing.assert_array_equal(back[1], double)
    for array in tensors:
        kind = 0 if array.dtype == np.float32 else 1
        part, rest = np.split(back[kind], [array.size])
        np.testing.assert_array_equal(part.reshape(array.shape), array.astype(part.dtype))
        back = (rest, back[1]) if kind == 0 else (back[0], rest)
    assert not len(back[0])
    assert not len(back[1])


@given(WORKER_FRAMES)
def test_what_follows_a_workers_frame(frame: FromWorker) -> None:
    size = payload_bytes(frame)
    if isinstance(frame, Taken):
        assert size == 4 * frame.singles + 8 * frame.doubles
    else:
        assert size == (frame.size_bytes if isinstance(frame, TakeState) else 0)
    assert payload_bytes(State(size)) == size
    assert frames.SINGLE.itemsize == 4

"""No message costs its reader much more than its own size, whatever is in it, and no error quotes all of it."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common import slices as exchange
from firmware_agent.common.errors import MOST_CHARACTERS, ProtocolError
from firmware_agent.common.frames.frame_fields import (
    MAX_DIMENSIONS,
    MAX_RAW_STEPS,
    MAX_TENSORS,
    MAX_TIMED_SLICES,
    TensorSpec,
)
from firmware_agent.common.frames.session_frames import Tensors
from firmware_agent.common.slices import Assembler, make_slice, tensor_specs
from firmware_agent.common.wire import decode, encode, pack, unpack
from host.training.sync.exchange.slice_log import SliceLog
from tests.support.fakes import hello

_PLAIN = msgspec.msgpack.Encoder()
_MEASURED = {"type": "Measured", "samples": 1, "steps": 1, "seconds": {}, "elapsed_seconds": 1.0}
# The smallest valid element of the longest list that a frame may have.
_STEP_SECONDS = _PLAIN.encode("step_seconds") + _PLAIN.encode([{}] * MAX_RAW_STEPS)


def raw_map(*fields: bytes) -> bytes:
    return b"\xde" + len(fields).to_bytes(2, "big") + b"".join(fields)


def fields(frame: dict[str, Any]) -> list[bytes]:
    return [_PLAIN.encode(name) + _PLAIN.encode(value) for name, value in frame.items()]


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (Tensors(1, [TensorSpec("w", "<f4", (2**53,) * 115_000)]), "length <= 8"),
        (Tensors(1, [TensorSpec("w", "<f4", (2**53,))]), "<= 8589934592"),
        (Tensors(1, [TensorSpec(str(n), "<f4", ()) for n in range(MAX_TENSORS + 1)]), "length <= 16384"),
        (_MEASURED | {"step_seconds": [{}] * 1_000_000}, "length <= 4096"),
        (msgspec.to_builtins(hello()) | {"facts": {str(n): "" for n in range(65)}}, "length <= 64"),
        (msgspec.to_builtins(hello()) | {"facts": {"torch": "x" * 1025}}, "length <= 1024"),
    ],
)
def test_what_a_frame_has_many_of_is_bounded(frame: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode(_PLAIN.encode(frame))


def test_a_field_that_comes_again_and_again_is_refused_undecoded() -> None:
    once = raw_map(*fields(_MEASURED), _STEP_SECONDS)
    assert len(decode(once).step_seconds) == MAX_RAW_STEPS  # type: ignore[union-attr]
    with pytest.raises(ProtocolError, match="repeats a field"):
        decode(raw_map(*fields(_MEASURED), *[_STEP_SECONDS] * 200))


def test_long_frames_do_not_come_together_in_one_message() -> None:
    once = raw_map(*fields(_MEASURED), _STEP_SECONDS)
    assert len(unpack(b"\xdc\x00\x0f" + once * 15)) == 15
    with pytest.raises(ProtocolError, match="may join"):
        unpack(b"\xdc\x00\xc8" + once * 200)


@given(sizes=st.lists(st.integers(1, 3 << 15), min_size=1, max_size=6), names=st.integers(1, 1500))
def test_whatever_our_own_sender_packs_is_taken(sizes: list[int], names: int) -> None:
    """Long frames of every kind pass the checks that hostile ones do not."""
    frames: list[Any] = [make_slice(1, "w", 0, bytes(size)) for size in sizes]
    frames.append(
        Tensors(1, [TensorSpec(f"layers.{n}.weight-of-a-deep-model", "<f4", (64, 64, 3, 3)) for n in range(names)])
    )
    got = [frame for message in pack(map(encode, frames)) for frame in unpack(message)]
    assert [encode(frame) for frame in got] == [encode(frame) for frame in frames]


@pytest.mark.parametrize("hostile", [{"type": "x" * 1_000_000}, {"type": "Welcome", "x" * 1_000_000: 1}])
def test_an_error_quotes_the_beginning_of_a_frame_alone(hostile: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(_PLAIN.encode(hostile))
    assert len(str(caught.value)) < MOST_CHARACTERS + 50


def test_a_shape_that_numpy_cannot_have_is_refused_and_no_error_of_numpys() -> None:
    with pytest.raises(ProtocolError, match="more than"):
        Assembler(1, [TensorSpec("w", "<f8", (0, 2**33, 2**33))])


def test_a_model_that_the_wire_cannot_take_is_named_by_its_sender() -> None:
    with pytest.raises(ProtocolError, match=rf"16384 tensors of {MAX_DIMENSIONS} dimensions"):
        tensor_specs({"w": np.zeros((1,) * (MAX_DIMENSIONS + 1))})


def test_a_tensor_in_ever_smaller_slices_is_refused_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte a slice, 40 MB of weights would be 5 GB of bookkeeping."""
    monkeypatch.setattr(exchange, "MAX_TENSOR_SLICES", 10)
    assembler = Assembler(1, [TensorSpec("w", "|u1", (100,))])
    for offset in range(18, -2, -2):
        assert assembler.add(make_slice(1, "w", offset, b"x"))
    assert not assembler.add(make_slice(1, "w", 0, b"x"))  # a repetition is none
    with pytest.raises(ProtocolError, match="send larger ones"):
        assembler.add(make_slice(1, "w", 50, b"x"))


def test_repeated_slices_fill_no_memory() -> None:
    log = SliceLog(1, "csd-00", lambda: 0.0)
    for _ in range(MAX_TIMED_SLICES + 100):
        log.arrive("w", 1)
    assert len(log._came["w", 1]) == MAX_TIMED_SLICES

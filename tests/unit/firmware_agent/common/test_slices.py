import copy
import itertools
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_agent.common.errors import ProtocolError
from firmware_agent.common.frames.frame_fields import MAX_SLICE_BYTES, TensorSpec
from firmware_agent.common.frames.session_frames import Slice
from firmware_agent.common.slices import Array, Assembler, cut_slices, make_slice, spec_bytes, tensor_specs
from firmware_agent.common.wire import decode, encode
from tests.support import strategies

EXCHANGE = 7


def flat_bytes(array: Array) -> bytes:
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


@st.composite
def cuts(draw: st.DrawFn, arrays: dict[str, Array]) -> list[Slice]:
    """The arrays' bytes cut anywhere, each tensor otherwise, in any order, some pieces repeated."""
    pieces = []
    for name, array in arrays.items():
        content = flat_bytes(array)
        if content:
            inner = draw(st.sets(st.integers(1, len(content) - 1), max_size=6)) if len(content) > 1 else set()
            edges = [0, *sorted(inner), len(content)]
            pieces += [make_slice(EXCHANGE, name, a, content[a:b]) for a, b in itertools.pairwise(edges)]
    repeated = draw(st.lists(st.sampled_from(pieces), max_size=4)) if pieces else []
    return draw(st.permutations(pieces + repeated))


def fed(arrays: dict[str, Array], pieces: Iterator[Slice] | list[Slice]) -> Assembler:
    assembler = Assembler(EXCHANGE, tensor_specs(arrays))
    for piece in pieces:
        assembler.add(piece)
    return assembler


def assert_same(got: dict[str, Array], sent: dict[str, Array]) -> None:
    assert list(got) == list(sent)
    for name, array in sent.items():
        assert got[name].shape == array.shape
        assert got[name].dtype == array.dtype.newbyteorder("<")
        assert got[name].tobytes() == flat_bytes(array)  # bytes, for nan is not equal to itself


def state(assembler: Assembler) -> dict[str, Any]:
    return copy.deepcopy(vars(assembler))


def assert_refused_unchanged(assembler: Assembler, piece: Slice, match: str) -> None:
    before = state(assembler)
    with pytest.raises(ProtocolError, match=match):
        assembler.add(piece)
    np.testing.assert_equal(state(assembler), before)


@given(arrays=strategies.arrays(), slice_bytes=st.integers(1, 100), data=st.data())
def test_slices_of_any_size_in_any_order_come_back_bit_by_bit(
    arrays: dict[str, Array], slice_bytes: int, data: st.DataObject
) -> None:
    pieces = list(cut_slices(EXCHANGE, arrays, slice_bytes))
    assert all(1 <= len(piece.data) <= slice_bytes for piece in pieces)
    assembler = fed(arrays, data.draw(st.permutations(pieces)))
    assert assembler.complete
    assert_same(assembler.arrays(), arrays)


@given(arrays=strategies.arrays(), data=st.data())
def test_any_cut_in_any_order_with_repetitions_comes_back_bit_by_bit(
    arrays: dict[str, Array], data: st.DataObject
) -> None:
    assert_same(fed(arrays, data.draw(cuts(arrays))).arrays(), arrays)


@given(arrays=strategies.arrays(), data=st.data())
def test_it_is_complete_with_the_last_byte_and_not_before(arrays: dict[str, Array], data: st.DataObject) -> None:
    assembler = Assembler(EXCHANGE, tensor_specs(arrays))
    left = sum(map(spec_bytes, tensor_specs(arrays)))
    for piece in data.draw(st.permutations(list(cut_slices(EXCHANGE, arrays, 16)))):
        assert not assembler.complete
        with pytest.raises(ProtocolError, match=f"{left} bytes missing"):
            assembler.arrays()
        assembler.add(piece)
        left -= len(piece.data)
        assert assembler.missing_bytes == left
    assert assembler.complete


@given(arrays=strategies.arrays(), data=st.data())
def test_what_has_come_in_of_each_tensor_is_known_to_the_byte(arrays: dict[str, Array], data: st.DataObject) -> None:
    pieces = data.draw(cuts(arrays))
    assembler = fed(arrays, pieces[: data.draw(st.integers(0, len(pieces)))])
    came = {name: np.zeros(len(flat_bytes(array)), bool) for name, array in arrays.items()}
    for piece in pieces[: data.draw(st.integers(0, len(pieces)))]:
        assembler.add(piece)
    for name, here in came.items():
        array, spans = assembler.partial(name)
        for start, end in [(0, len(here))] if spans is None else spans:
            here[start:end] = True
        content = np.frombuffer(flat_bytes(arrays[name]), np.uint8)
        assert np.array_equal(array.reshape(-1).view(np.uint8)[here], content[here])
        assert (spans is None) == assembler.has(name) == bool(here.all())
        if spans is not None:  # rising, apart, none of them empty
            edges = [edge for span in spans for edge in span]
            assert edges == sorted(set(edges))
    assert sum(int((~here).sum()) for here in came.values()) == assembler.missing_bytes


def test_a_tensor_that_is_not_in_the_exchange_is_named() -> None:
    assembler = fed({"w": np.ones(3)}, [])
    for ask in (assembler.has, assembler.partial):
        with pytest.raises(ProtocolError, match="does not have the tensor 'v'"):
            ask("v")


@given(arrays=strategies.arrays(), data=st.data())
def test_a_slice_that_does_not_fit_is_refused_and_changes_nothing(
    arrays: dict[str, Array], data: st.DataObject
) -> None:
    pieces = data.draw(cuts(arrays))
    assembler = fed(arrays, pieces[: data.draw(st.integers(0, len(pieces)))])
    name = data.draw(st.sampled_from(sorted(arrays)))
    size = len(flat_bytes(arrays[name]))
    foreign = data.draw(st.text(min_size=1, max_size=5).filter(lambda text: text not in arrays))
    over = data.draw(st.integers(max(0, size - 3), size + 2**40))
    other = data.draw(st.integers(0, 2**53).filter(lambda number: number != EXCHANGE))
    assert_refused_unchanged(assembler, make_slice(other, name, 0, b"x"), "exchange")
    assert_refused_unchanged(assembler, make_slice(EXCHANGE, foreign, 0, b"x"), "does not have")
    assert_refused_unchanged(assembler, make_slice(EXCHANGE, name, over, b"xxxx"), "reach past")


@given(data=st.data(), size=st.integers(2, 40))
def test_a_contradiction_or_an_overlap_is_refused_and_changes_nothing(data: st.DataObject, size: int) -> None:
    arrays = {"w": np.arange(size, dtype=np.uint8)}
    content = flat_bytes(arrays["w"])
    start = data.draw(st.integers(0, size - 1))
    end = data.draw(st.integers(start + 1, size))
    assembler = fed(arrays, [make_slice(EXCHANGE, "w", start, content[start:end])])
    position = data.draw(st.integers(start, end - 1))
    changed = bytearray(content)
    changed[position] ^= data.draw(st.integers(1, 255))
    assert_refused_unchanged(assembler, make_slice(EXCHANGE, "w", start, bytes(changed[start:end])), "other bytes")
    # Any span that touches [start, end) without being it, the bytes themselves being right.
    low = data.draw(st.integers(0, end - 1))
    high = data.draw(st.integers(max(low, start) + 1, size))
    if (low, high) != (start, end):
        assert_refused_unchanged(assembler, make_slice(EXCHANGE, "w", low, content[low:high]), "overlap")
    for n in (*range(start), *range(end, size)):
        assembler.add(make_slice(EXCHANGE, "w", n, content[n : n + 1]))
    assert_same(assembler.arrays(), arrays)


@given(arrays=strategies.arrays().filter(lambda arrays: any(a.size for a in arrays.values())), data=st.data())
def test_any_flipped_bit_of_a_slice_is_refused_and_changes_nothing(
    arrays: dict[str, Array], data: st.DataObject
) -> None:
    piece = data.draw(st.sampled_from(list(cut_slices(EXCHANGE, arrays, 16))))
    damaged = bytearray(encode(piece))
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    assembler = Assembler(EXCHANGE, tensor_specs(arrays))
    before = state(assembler)
    with pytest.raises(ProtocolError):
        assembler.add(cast(Slice, decode(bytes(damaged))))
    np.testing.assert_equal(state(assembler), before)


def test_every_flipped_bit_of_the_data_is_named_by_tensor_and_offset() -> None:
    arrays: dict[str, Array] = {"layer.weight": np.arange(64, dtype=np.uint8)}
    assembler = fed(arrays, [])
    piece = list(cut_slices(EXCHANGE, arrays, 32))[1]
    for bit in range(8 * 32):
        content = bytearray(piece.data)
        content[bit // 8] ^= 1 << bit % 8
        damaged = msgspec.structs.replace(piece, data=memoryview(content))
        assert_refused_unchanged(assembler, damaged, r"layer\.weight\+32: 32 bytes do not match their checksum")


def test_whole_data_under_another_ones_address_are_refused() -> None:
    arrays: dict[str, Array] = {"a": np.zeros(8, np.uint8), "b": np.zeros(8, np.uint8)}
    piece = make_slice(EXCHANGE, "a", 0, b"1234")
    for change in ({"tensor": "b"}, {"offset": 4}):
        assert_refused_unchanged(fed(arrays, []), msgspec.structs.replace(piece, **change), "checksum")
    later = Assembler(EXCHANGE + 1, tensor_specs(arrays))
    assert_refused_unchanged(later, msgspec.structs.replace(piece, exchange=EXCHANGE + 1), "checksum")


def test_slices_are_views_of_the_array_they_were_cut_from() -> None:
    array = np.arange(100, dtype=np.float32)
    assert all(np.shares_memory(np.frombuffer(p.data, np.uint8), array) for p in cut_slices(EXCHANGE, {"w": array}, 64))


@given(arrays=strategies.arrays(), data=st.data())
def test_bytes_go_into_the_memory_that_was_offered(arrays: dict[str, Array], data: st.DataObject) -> None:
    offered = {name: np.zeros(a.shape, a.dtype.newbyteorder("<")) for name, a in arrays.items()}
    assembler = Assembler(EXCHANGE, tensor_specs(arrays), into=offered)
    for piece in data.draw(cuts(arrays)):
        assembler.add(piece)
    got = assembler.arrays()
    assert_same(got, arrays)
    assert all(got[name] is offered[name] for name in arrays)


@pytest.mark.parametrize(
    "offered",
    [
        np.zeros((3, 2), np.float32),
        np.zeros((2, 3), np.int32),
        np.zeros((2, 3), ">f4"),
        np.zeros((3, 2), np.float32).T,
        np.broadcast_to(np.float32(0), (2, 3)),
    ],
)
def test_memory_that_does_not_fit_is_left_alone(offered: Array) -> None:
    arrays: dict[str, Array] = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    assembler = Assembler(EXCHANGE, tensor_specs(arrays), into={"w": offered})
    for piece in cut_slices(EXCHANGE, arrays):
        assembler.add(piece)
    assert_same(assembler.arrays(), arrays)
    assert not offered.any()


def test_the_assembled_arrays_are_not_the_senders() -> None:
    arrays: dict[str, Array] = {"w": np.zeros(4, np.float32)}
    got = fed(arrays, cut_slices(EXCHANGE, arrays)).arrays()
    np.asarray(arrays["w"])[:] = 1
    assert not got["w"].any()


def test_slices_larger_than_the_wire_takes_are_never_cut() -> None:
    for size in (0, -1, MAX_SLICE_BYTES + 1):
        with pytest.raises(ProtocolError, match="1 to"):
            list(cut_slices(1, {"w": np.zeros(4)}, size))
    big = {"w": np.arange(MAX_SLICE_BYTES // 4 + 1, dtype=np.float32)}
    assert [len(piece.data) for piece in cut_slices(EXCHANGE, big)] == [MAX_SLICE_BYTES, 4]
    assert_same(fed(big, cut_slices(EXCHANGE, big)).arrays(), big)


def test_an_announcement_that_is_not_the_expected_one_is_refused() -> None:
    specs = [TensorSpec("w", "<f4", (2, 3)), TensorSpec("b", "<f4", (3,))]
    Assembler(1, specs, specs)
    for wrong in (
        specs[:1],
        [*specs, TensorSpec("c", "<f4", (1,))],
        specs[::-1],
        [TensorSpec("w", "<f8", (2, 3)), specs[1]],
        [TensorSpec("w", "<f4", (3, 2)), specs[1]],
    ):
        with pytest.raises(ProtocolError, match="not the model's"):
            Assembler(1, wrong, specs)


def test_a_name_twice_and_a_boast_are_refused_before_memory_is_taken() -> None:
    with pytest.raises(ProtocolError, match="twice"):
        Assembler(1, [TensorSpec("w", "<f4", (1,))] * 2)
    with pytest.raises(ProtocolError, match="more than"):
        Assembler(1, [TensorSpec("w", "<f8", (2**53, 2**53))])

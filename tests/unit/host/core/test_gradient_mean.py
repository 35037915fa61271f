import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firmware_agent.common.errors import ConfigurationError, DeviceLost
from firmware_agent.common.slices import Assembler, Spans, cut_slices, tensor_specs
from host.core.tensor_sums import TensorContribution, combine, weighted_mean

DTYPES = [np.float32, np.float64, np.int64]


@st.composite
def spans_of(draw: st.DrawFn, size_bytes: int) -> Spans:
    """Some bytes of a tensor, at any edge, also within an element."""
    edges = sorted(draw(st.sets(st.integers(0, size_bytes), max_size=8)))
    return [(edges[n], edges[n + 1]) for n in range(0, len(edges) - 1, 2)]


@st.composite
def contributions(draw: st.DrawFn, whole: bool = False) -> list[TensorContribution]:
    """Participants; unless `whole`, all but one may lack bytes."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=5))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    elements = st.integers(-1000, 1000) if dtype.kind == "i" else st.floats(-1e6, 1e6, width=32)
    parts = []
    for number in range(draw(st.integers(1, 5))):
        array = draw(hnp.arrays(dtype, shape, elements=elements))
        spans = None if whole or number == 0 else draw(st.none() | spans_of(array.nbytes))
        parts.append(TensorContribution(draw(st.integers(1, 1000)), array, spans))
    return draw(st.permutations(parts))


@given(parts=contributions(whole=True))
def test_whole_tensors_are_the_weighted_mean_to_the_bit(parts: list[TensorContribution]) -> None:
    want = weighted_mean([(part.weight, {"w": part.array}) for part in parts])["w"]
    got = combine("w", parts)
    assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())
    spelt_out = [TensorContribution(p.weight, p.array, [(0, p.array.nbytes)]) for p in parts]
    assert combine("w", spelt_out).tobytes() == want.tobytes()


@given(parts=contributions())
def test_each_element_is_the_mean_over_those_who_delivered_it(parts: list[TensorContribution]) -> None:
    got = combine("w", parts)
    size = got.itemsize
    for n in range(got.size):
        there = [
            part
            for part in parts
            if part.spans is None or any(start <= n * size and (n + 1) * size <= end for start, end in part.spans)
        ]
        values = [(float(part.array.reshape(-1)[n]), part.weight / sum(p.weight for p in there)) for part in there]
        want = math.fsum(value * share for value, share in values)
        largest = max(abs(value) for value, _ in values)
        if got.dtype.kind == "i":
            assert abs(int(got.reshape(-1)[n]) - want) <= 0.5 + 1e-9
        else:
            # Values below the smallest normal number are whole multiples of the smallest one: no relative error holds.
            grain = len(parts) * float(np.finfo(got.dtype).smallest_subnormal)  # type: ignore[type-var]
            assert float(got.reshape(-1)[n]) == pytest.approx(want, rel=2e-7, abs=2e-7 * largest + grain)


@given(parts=contributions(), value=st.integers(-100, 100))
def test_the_weights_of_every_slice_sum_to_one(parts: list[TensorContribution], value: int) -> None:
    """So what all agree on comes out, whoever delivered which part of it."""
    same = [part._replace(array=np.full_like(part.array, value)) for part in parts]
    np.testing.assert_allclose(combine("w", same), value, rtol=1e-6)


@given(parts=contributions(), data=st.data())
def test_bytes_that_were_not_delivered_do_not_matter(parts: list[TensorContribution], data: st.DataObject) -> None:
    changed = []
    for part in parts:
        content = np.frombuffer(data.draw(st.binary(min_size=part.array.nbytes, max_size=part.array.nbytes)), np.uint8)
        content = content.copy()
        original = np.ascontiguousarray(part.array).reshape(-1).view(np.uint8)
        for start, end in [(0, len(content))] if part.spans is None else part.spans:
            content[start:end] = original[start:end]
        changed.append(part._replace(array=content.view(part.array.dtype).reshape(part.array.shape)))
    with np.errstate(all="ignore"):
        assert combine("w", changed).tobytes() == combine("w", parts).tobytes()


@given(size=st.integers(1, 50), slice_bytes=st.integers(1, 40), data=st.data())
def test_what_an_assembler_has_of_a_lost_participant_goes_in(size: int, slice_bytes: int, data: st.DataObject) -> None:
    mine, theirs = {"w": np.arange(size, dtype=np.float64)}, {"w": -np.ones(size)}
    pieces = list(cut_slices(1, theirs, slice_bytes))
    came = data.draw(st.integers(0, len(pieces)))
    assembler = Assembler(1, tensor_specs(theirs))
    for piece in pieces[:came]:
        assembler.add(piece)
    got = combine("w", [TensorContribution(3, mine["w"]), TensorContribution(1, *assembler.partial("w"))])
    whole = min(size, came * slice_bytes // 8)
    np.testing.assert_array_equal(got[whole:], mine["w"][whole:])
    np.testing.assert_allclose(got[:whole], 0.75 * mine["w"][:whole] - 0.25)


def test_what_nobody_delivered_is_an_error() -> None:
    parts = [TensorContribution(1, np.ones(10), [(0, 16)]), TensorContribution(2, np.ones(10), [(24, 75)])]
    with pytest.raises(DeviceLost, match=r"layer.0: elements 2 to 2 of 10 were delivered by no participant"):
        combine("layer.0", parts)
    with pytest.raises(DeviceLost, match=r"elements 9 to 9 of 10"):  # half of the last one came in
        combine("w", [parts[1]._replace(spans=[(0, 75)])])


def test_nobody_and_weights_without_a_mean_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no contribution"):
        combine("w", [])
    with pytest.raises(ConfigurationError, match="none negative"):
        combine("w", [TensorContribution(0, np.ones(2)), TensorContribution(0, np.ones(2), [(0, 8)])])


def test_the_arrays_stay_as_they_were_and_strided_ones_do() -> None:
    strided = np.arange(12.0).reshape(3, 4).T
    got = combine("w", [TensorContribution(1, strided), TensorContribution(1, strided, [(0, 40)])])
    np.testing.assert_array_equal(got, strided)
    got[:] = 0
    assert strided.sum() == 66

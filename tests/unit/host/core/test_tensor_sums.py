import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.slices import Array
from host.core import tensor_sums as aggregate
from host.core.tensor_sums import round_weights, weighted_mean

Contribution = tuple[float, dict[str, Array]]
numbers = st.floats(-1e6, 1e6, width=32)
weights = st.floats(0, 1e6) | st.integers(0, 10**6).map(float)


@st.composite
def contributions(draw: st.DrawFn) -> list[Contribution]:
    """Participants with float32 tensors of the same random names and shapes; some weights may be zero, not all."""
    shapes = draw(
        st.dictionaries(st.sampled_from("abc"), hnp.array_shapes(min_dims=0, max_dims=3, max_side=4), min_size=1)
    )
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        arrays = {name: draw(hnp.arrays(np.float32, shape, elements=numbers)) for name, shape in shapes.items()}
        parts.append((draw(weights), arrays))
    return [(draw(st.floats(1, 1e6)), parts[0][1]), *parts[1:]]


def assert_close(got: Array, want: Array, size: float) -> None:
    """Within float32's rounding of numbers as large as `size`."""
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=2e-7, atol=2e-7 * size + 2e-45
    )  # and of its smallest number


@given(parts=contributions())
def test_it_is_the_weighted_mean(parts: list[Contribution]) -> None:
    mean = weighted_mean(parts)
    total = math.fsum(weight for weight, _ in parts)
    assert list(mean) == list(parts[0][1])
    for name, array in mean.items():
        stack = np.stack([arrays[name].astype(np.float64) for _, arrays in parts])
        want = np.tensordot(np.array([weight / total for weight, _ in parts]), stack, axes=1)
        assert array.dtype == np.float32
        assert array.shape == parts[0][1][name].shape
        assert_close(array, want, np.abs(stack).max())


@given(parts=contributions(), data=st.data())
def test_the_order_of_participants_changes_nothing_beyond_rounding(
    parts: list[Contribution], data: st.DataObject
) -> None:
    one, other = weighted_mean(parts), weighted_mean(data.draw(st.permutations(parts)))
    for name in one:
        assert_close(one[name], other[name], max(np.abs(arrays[name]).max() for _, arrays in parts))


@given(parts=contributions(), factor=st.floats(1e-3, 1e3))
def test_only_the_ratio_of_weights_counts(parts: list[Contribution], factor: float) -> None:
    one, other = weighted_mean(parts), weighted_mean([(weight * factor, arrays) for weight, arrays in parts])
    for name in one:
        assert_close(one[name], other[name], max(np.abs(arrays[name]).max() for _, arrays in parts))


@given(parts=contributions())
def test_the_same_input_gives_the_same_bits(parts: list[Contribution]) -> None:
    one, other = weighted_mean(parts), weighted_mean(parts)
    assert {name: array.tobytes() for name, array in one.items()} == {n: a.tobytes() for n, a in other.items()}


@given(parts=contributions(), block=st.integers(1, 100))
def test_it_is_the_plain_formula_to_the_bit_whatever_the_blocks(parts: list[Contribution], block: int) -> None:
    mean = weighted_mean(parts, block)
    shares = np.array([weight for weight, _ in parts]) / np.array([weight for weight, _ in parts]).sum()
    for name, array in mean.items():
        total = np.zeros(array.shape, np.float64)
        for share, (_, arrays) in zip(shares, parts, strict=True):
            total += share * arrays[name].astype(np.float64)
        assert array.tobytes() == total.astype(np.float32).tobytes()


def test_large_and_strided_tensors_are_summed_alike() -> None:
    generator = np.random.default_rng(0)
    size = aggregate._SHARED_ELEMENTS // 1000 + 1
    parts = [(float(n + 1), {"w": generator.standard_normal((1000, size)).astype(np.float32).T}) for n in range(5)]
    plain = sum(np.float64(weight / 15.0) * arrays["w"].astype(np.float64) for weight, arrays in parts)
    np.testing.assert_array_equal(weighted_mean(list(parts))["w"], np.asarray(plain).astype(np.float32))


@pytest.mark.parametrize(
    ("samples", "want"), [([3, 0, 5], [3, 0, 5]), ([0, 0, 0], [1, 1, 1]), ([0], [1]), ([7], [7]), ([], [])]
)
def test_participants_count_by_samples_and_all_the_same_where_nobody_trained(
    samples: list[int], want: list[int]
) -> None:
    assert round_weights(samples) == want


@given(parts=contributions())
def test_equal_participants_and_a_single_one_are_their_own_mean(parts: list[Contribution]) -> None:
    alone = weighted_mean(parts[:1])
    for name, array in parts[0][1].items():
        np.testing.assert_array_equal(alone[name], array)
        same = weighted_mean([(weight, parts[0][1]) for weight, _ in parts])
        assert_close(same[name], array.astype(np.float64), np.abs(array).max())


def test_a_participant_of_weight_zero_does_not_count() -> None:
    mean = weighted_mean([(3.0, {"w": np.float32([1, 2])}), (0.0, {"w": np.float32([9, 9])})])
    assert mean["w"].tolist() == [1, 2]


def test_integers_and_booleans_are_rounded_back_to_their_type() -> None:
    parts = [
        (1.0, {"steps": np.int64(10), "seen": np.array([True, False]), "small": np.uint8([1])}),
        (3.0, {"steps": np.int64(11), "seen": np.array([True, True]), "small": np.uint8([3])}),
    ]
    mean = weighted_mean([(weight, {n: np.asarray(a) for n, a in arrays.items()}) for weight, arrays in parts])
    assert mean["steps"] == 11  # 10.75
    assert mean["steps"].dtype == np.int64
    assert mean["seen"].tolist() == [True, True]
    assert mean["seen"].dtype == np.bool_
    assert mean["small"].tolist() == [2]


def test_the_inputs_stay_as_they_were() -> None:
    arrays = {"w": np.float32([1, 2])}
    mean = weighted_mean([(1.0, arrays), (1.0, {"w": np.float32([3, 4])})])  # type: ignore[list-item]
    mean["w"][:] = 0
    assert arrays["w"].tolist() == [1, 2]


@pytest.mark.parametrize("bad", [[], [0.0], [0.0, 0.0], [1.0, -1.0], [math.nan, 1.0], [math.inf], [-1.0]])
def test_weights_without_a_mean_are_refused(bad: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="one must be positive, none negative"):
        weighted_mean([(weight, {"w": np.float32([1])}) for weight in bad])

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firmware_agent.common.errors import DataError
from host.core.partition import Indices, partition_dirichlet, partition_evenly

Labels = npt.NDArray[np.int64]
seeds = st.integers(0, 2**32 - 1)


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Labels, int]:
    """Labels of a data set, and a number of shards that it can fill."""
    labels = draw(hnp.arrays(np.int64, st.integers(1, 60), elements=st.integers(0, 5)))
    return labels, draw(st.integers(1, len(labels)))


def assert_dealt_out(parts: list[Indices], samples: int, shards: int) -> None:
    assert len(parts) == shards
    assert all(len(part) > 0 for part in parts)
    assert all(np.array_equal(part, np.sort(part)) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@given(data=labelled(), concentration=st.floats(1e-3, 1e6), seed=seeds)
def test_dirichlet_deals_out_every_record_once_and_leaves_no_shard_empty(
    data: tuple[Labels, int], concentration: float, seed: int
) -> None:
    labels, shards = data
    parts = partition_dirichlet(labels, shards, concentration, np.random.default_rng(seed))
    assert_dealt_out(parts, len(labels), shards)


@given(samples=st.integers(1, 100), data=st.data(), seed=seeds)
def test_evenly_deals_out_every_record_once_with_sizes_that_differ_by_at_most_one(
    samples: int, data: st.DataObject, seed: int
) -> None:
    shards = data.draw(st.integers(1, samples))
    parts = partition_evenly(samples, shards, np.random.default_rng(seed))
    assert_dealt_out(parts, samples, shards)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(data=labelled(), concentration=st.floats(1e-2, 1e2), seed=seeds)
def test_the_seed_decides(data: tuple[Labels, int], concentration: float, seed: int) -> None:
    labels, shards = data
    one, other = (partition_dirichlet(labels, shards, concentration, np.random.default_rng(seed)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_another_seed_gives_other_shards() -> None:
    labels = np.arange(200) % 10
    for deal in (
        lambda rng: partition_dirichlet(labels, 4, 1.0, rng),
        lambda rng: partition_evenly(len(labels), 4, rng),
    ):
        drawn = {tuple(deal(np.random.default_rng(seed))[0]) for seed in range(20)}
        assert len(drawn) == 20


def test_a_small_concentration_gives_more_skew_than_a_large_one() -> None:
    """Mean over 20 seeds of the total variation between a shard's classes and the whole's: far apart at each step."""
    labels = np.arange(2000) % 10
    skews = [np.mean([skew(labels, concentration, seed) for seed in range(20)]) for concentration in (0.1, 1, 10, 1e4)]
    assert all(smaller > 1.5 * larger for smaller, larger in itertools.pairwise(skews)), skews
    assert skews[0] > 0.5
    assert skews[-1] < 0.05


def test_too_few_records_are_refused() -> None:
    with pytest.raises(DataError, match="3 records cannot fill 4 shards; use fewer devices"):
        partition_dirichlet(np.zeros(3, np.int64), 4, 1.0, np.random.default_rng(0))
    with pytest.raises(DataError, match="3 records cannot fill 4 shards; use fewer devices"):
        partition_evenly(3, 4, np.random.default_rng(0))


def skew(labels: Labels, concentration: float, seed: int) -> float:
    parts = partition_dirichlet(labels, 5, concentration, np.random.default_rng(seed))
    whole = np.bincount(labels) / len(labels)
    distances = [np.abs(np.bincount(labels[p], minlength=10) / len(p) - whole).sum() / 2 for p in parts]
    return float(np.mean(distances))

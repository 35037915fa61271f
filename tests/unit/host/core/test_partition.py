import contextlib
import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firmware_agent.common.errors import DataError
from host.core.partition import (
    Indices,
    partition_by_class,
    partition_by_value,
    partition_dirichlet,
    partition_evenly,
)

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


@given(data=labelled(), held=st.integers(1, 7), seed=seeds)
def test_by_class_each_shard_holds_so_many_and_drives_share_a_class_evenly(
    data: tuple[Labels, int], held: int, seed: int
) -> None:
    labels, shards = data
    classes, counts = np.unique(labels, return_counts=True)
    parts: list[Indices] = []
    with contextlib.suppress(DataError):
        parts = partition_by_class(labels, shards, held, np.random.default_rng(seed))
    if not parts:  # a class with a record for each shard is never short
        assert not held <= len(classes) <= held * shards or counts.min() < shards
        return
    assert held <= len(classes) <= held * shards
    assert_dealt_out(parts, len(labels), shards)
    table = np.array([[np.sum(labels[part] == label) for label in classes] for part in parts])
    assert ((table > 0).sum(axis=1) == held).all()
    for column in table.T:
        holding = column[column > 0]
        assert len(holding) > 0
        assert holding.max() - holding.min() <= 1


@given(classes=st.integers(1, 12), shards=st.integers(1, 12), held=st.integers(1, 12), seed=seeds)
def test_with_records_enough_classes_are_on_as_many_shards_as_each_other(
    classes: int, shards: int, held: int, seed: int
) -> None:
    labels = np.repeat(np.arange(classes), shards)
    if not held <= classes <= held * shards:
        with pytest.raises(DataError, match="ask for"):
            partition_by_class(labels, shards, held, np.random.default_rng(seed))
        return
    parts = partition_by_class(labels, shards, held, np.random.default_rng(seed))
    holders = np.bincount(np.concatenate([np.unique(labels[part]) for part in parts]), minlength=classes)
    assert holders.max() - holders.min() <= 1


@pytest.mark.parametrize(
    ("shards", "held", "message"),
    [
        (4, 6, "6 classes per drive: the data have 5; ask for at most so many"),
        (
            2,
            2,
            "2 classes on each of 2 drives leave some of the 5 unheld; ask for 3 classes per drive or more",
        ),
        (4, 4, "4 classes on each of 4 drives: classes have too few records"),
    ],
)
def test_classes_that_cannot_be_dealt_out_so_are_refused_with_what_can(shards: int, held: int, message: str) -> None:
    labels = np.repeat(np.arange(5), [9, 9, 9, 1, 1])
    with pytest.raises(DataError, match=message):
        partition_by_class(labels, shards, held, np.random.default_rng(0))


@given(values=hnp.arrays(np.int64, st.integers(1, 80), elements=st.integers(-9, 9)), data=st.data(), seed=seeds)
def test_records_of_one_value_stay_together_on_shards_of_like_sizes(
    values: npt.NDArray[np.int64], data: st.DataObject, seed: int
) -> None:
    counts = np.unique(values, return_counts=True)[1]
    shards = data.draw(st.integers(1, len(counts)))
    parts = partition_by_value(values, shards, np.random.default_rng(seed))
    assert_dealt_out(parts, len(values), shards)
    kinds = [set(values[part].tolist()) for part in parts]
    assert sum(map(len, kinds)) == len(set().union(*kinds))
    # Greedy: when the largest shard got its last and rarest value it was the smallest of all.
    smallest = [min(np.sum(values[part] == kind) for kind in own) for part, own in zip(parts, kinds, strict=True)]
    largest = int(np.argmax(sizes(parts)))
    assert len(kinds[largest]) == 1 or sizes(parts)[largest] - min(sizes(parts)) <= smallest[largest]


def test_fewer_values_than_shards_are_refused() -> None:
    with pytest.raises(DataError, match="2 values cannot fill 3 shards; use fewer devices or another field"):
        partition_by_value(np.array([1, 1, 1, 7]), 3, np.random.default_rng(0))


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
        lambda rng: partition_by_class(labels, 4, 3, rng),
        lambda rng: partition_by_value(np.arange(200) // 2, 4, rng),
    ):
        drawn = {tuple(deal(np.random.default_rng(seed))[0]) for seed in range(20)}
        assert drawn == {tuple(deal(np.random.default_rng(seed))[0]) for seed in range(20)}
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


def sizes(parts: list[Indices]) -> list[int]:
    return [len(part) for part in parts]


def skew(labels: Labels, concentration: float, seed: int) -> float:
    parts = partition_dirichlet(labels, 5, concentration, np.random.default_rng(seed))
    whole = np.bincount(labels) / len(labels)
    distances = [np.abs(np.bincount(labels[p], minlength=10) / len(p) - whole).sum() / 2 for p in parts]
    return float(np.mean(distances))

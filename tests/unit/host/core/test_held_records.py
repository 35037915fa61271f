"""What each drive holds is counted by class, and every record counts once."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from host.core.partition import MOST_CLASSES, OTHERS, HeldRecords, count_held, partition_dirichlet


@given(
    labels=hnp.arrays(np.int64, st.integers(4, 120), elements=st.integers(0, 60)),
    drives=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_counts_are_those_of_each_drives_classes(labels: np.ndarray, drives: int, seed: int) -> None:
    parts = partition_dirichlet(np.zeros(len(labels), np.int64), drives, 1.0, np.random.default_rng(seed))
    held = count_held([f"csd-{n}" for n in range(drives)], parts, labels)
    assert [sum(row) for row in held.counts] == [len(part) for part in parts]
    assert held.private == len(labels)
    known = [name for name in held.classes if name != OTHERS]
    for part, row in zip(parts, held.counts, strict=True):
        assert row[: len(known)] == [np.sum(labels[part] == int(name)) for name in known]
    assert len(known) == min(MOST_CLASSES, len(set(labels.tolist())))
    least = min((np.sum(labels == int(name)) for name in known), default=0)
    assert all(np.sum(labels == label) <= least for label in set(labels.tolist()) - {int(name) for name in known})
    assert msgspec.json.decode(msgspec.json.encode(held), type=HeldRecords) == held


def test_classes_have_their_names_and_records_without_classes_one_count() -> None:
    parts = [np.array([0, 2]), np.array([1])]
    assert count_held(["a", "b"], parts, np.array([1, 0, 1]), ["cat", "dog"]) == HeldRecords(
        ["a", "b"], ["cat", "dog"], [[0, 2], [1, 0]]
    )
    assert count_held(["a", "b"], parts, None, (), 5, 2) == HeldRecords(["a", "b"], [], [[2], [1]], 5, 2)
    assert count_held([], [], np.array([1, 0])).counts == []


@pytest.mark.parametrize("counts", [[[1, 2]], [[1], [2]], [[1, 2], [3, -1]]])
def test_counts_of_other_drives_or_classes_are_refused(counts: list[list[int]]) -> None:
    with pytest.raises(msgspec.ValidationError, match="for each drive and class"):
        msgspec.convert({"drives": ["a", "b"], "classes": ["0", "1"], "counts": counts}, HeldRecords)

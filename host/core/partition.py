"""Partition of a data set among drives: which records lie in which drive's shard, and how many of which class."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import DataError

Indices = npt.NDArray[np.int64]
# So many classes are told apart; those with fewest records are counted together.
MOST_CLASSES = 20
OTHERS = "other classes"


def partition_dirichlet(
    labels: npt.NDArray[np.int64], shards: int, concentration: float, generator: np.random.Generator
) -> list[Indices]:
    """Deal records out so that each class is spread over the shards by a draw from a Dirichlet distribution.

    The usual way to make shards that are not identically distributed (Hsu, Qi and Brown 2019): for each class
    ``p ~ Dir(concentration)`` over the shards. A small concentration gives each shard few classes, a large one makes
    all alike. A shard that would stay empty gets one record of the largest.

    Args:
        labels: (samples,) class of each record.
        shards: how many shards.
        concentration: > 0.
        generator: the only source of randomness.

    Returns:
        One sorted index array per shard; together they hold every record exactly once, and none is empty.

    Raises:
        DataError: there are fewer records than shards.
    """
    _check_count(len(labels), shards)
    parts: list[list[Indices]] = [[] for _ in range(shards)]
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(shards, concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return _fill_empty([np.sort(np.concatenate(part)) for part in parts])


def partition_evenly(samples: int, shards: int, generator: np.random.Generator) -> list[Indices]:
    """Deal `samples` records out at random into shards whose sizes differ by at most one.

    Raises:
        DataError: there are fewer records than shards.
    """
    _check_count(samples, shards)
    return [np.sort(part) for part in np.array_split(generator.permutation(samples).astype(np.int64), shards)]


def partition_by_class(
    labels: npt.NDArray[np.int64], shards: int, held: int, generator: np.random.Generator
) -> list[Indices]:
    """Deal records out so that each shard holds `held` classes, drawn among those that fewest shards hold so far.

    A class's records are dealt out evenly, at random, to the shards that hold it.

    Args:
        labels: (samples,) class of each record.
        shards: how many shards.
        held: classes of each.
        generator: the only source of randomness.

    Returns:
        One sorted index array per shard; together they hold every record exactly once.

    Raises:
        DataError: there are not so many classes, or not all would be held, or they have too few records.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if held > len(classes):
        raise DataError(f"{held} classes per drive: the data have {len(classes)}; ask for at most so many")
    if held * shards < len(classes):
        raise DataError(
            f"{held} classes on each of {shards} drives leave some of the {len(classes)} unheld; ask for "
            f"{-(-len(classes) // shards)} classes per drive or more, or use {-(-len(classes) // held)} drives"
        )
    holders: list[list[int]] = [[] for _ in classes]
    for shard in range(shards):
        sizes = np.array([len(each) for each in holders])
        order = np.lexsort((generator.random(len(classes)), sizes))
        chosen = order[(sizes < counts)[order]][:held]  # a class has a record for each that holds it
        if len(chosen) < held:
            raise DataError(
                f"{held} classes on each of {shards} drives: classes have too few records to be on so many drives; ask "
                "for fewer classes per drive, or use fewer drives or more data"
            )
        for number in chosen:
            holders[number].append(shard)
    parts: list[list[Indices]] = [[] for _ in range(shards)]
    for label, among in zip(classes, holders, strict=True):
        members = generator.permutation(np.flatnonzero(labels == label))
        for shard, piece in zip(among, np.array_split(members, len(among)), strict=True):
            parts[shard].append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def partition_by_value(values: npt.NDArray[Any], shards: int, generator: np.random.Generator) -> list[Indices]:
    """Deal records out so that those of one value stay together: the most frequent value first, to the smallest shard.

    Args:
        values: (samples,) such as the user whom each record is of.
        shards: how many shards.
        generator: decides among values that are as frequent.

    Returns:
        One sorted index array per shard; together they hold every record exactly once, and none is empty.

    Raises:
        DataError: there are fewer values than shards.
    """
    found, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(found) < shards:
        raise DataError(f"{len(found)} values cannot fill {shards} shards; use fewer devices or another field")
    shuffled = generator.permutation(len(found))
    smallest = [(0, shard) for shard in range(shards)]
    shard_of = np.empty(len(found), np.int64)
    for value in shuffled[np.argsort(-counts[shuffled], kind="stable")]:
        size, shard = smallest[0]
        heapq.heapreplace(smallest, (size + int(counts[value]), shard))
        shard_of[value] = shard
    return [np.flatnonzero(shard_of[places] == shard) for shard in range(shards)]


def _check_count(samples: int, shards: int) -> None:
    if samples < shards:
        raise DataError(f"{samples} records cannot fill {shards} shards; use fewer devices or more data")


def _fill_empty(parts: list[Indices]) -> list[Indices]:
    for number, part in enumerate(parts):
        if len(part) == 0:
            largest = max(range(len(parts)), key=lambda n: len(parts[n]))
            parts[number], parts[largest] = parts[largest][:1], parts[largest][1:]
    return parts


class HeldRecords(msgspec.Struct, frozen=True):
    """How many private records of which class each drive holds.

    Attributes:
        drives: their names.
        classes: their names, the last one `OTHERS` if there are more than `MOST_CLASSES`; empty without classes.
        counts: of each drive, records of each class; without classes one number, of all its records.
        public: records that lie on every drive beside these.
        left_out: records that lie on none.
    """

    drives: list[str]
    classes: list[str]
    counts: list[list[int]]
    public: int = 0
    left_out: int = 0

    def __post_init__(self) -> None:
        """Refuse counts that are not of these drives and classes.

        Raises:
            ValueError: they are not.
        """
        width = len(self.classes) or 1
        if len(self.counts) != len(self.drives) or any(len(row) != width or min(row) < 0 for row in self.counts):
            raise ValueError("counts are not one number for each drive and class")

    @property
    def private(self) -> int:
        """All private records."""
        return sum(map(sum, self.counts))


def count_held(
    drives: Sequence[str],
    private: Sequence[Indices],
    labels: npt.NDArray[np.integer] | None,
    class_names: Sequence[str] = (),
    public: int = 0,
    left_out: int = 0,
) -> HeldRecords:
    """Return what each drive holds.

    Args:
        drives: their names.
        private: of each, the numbers of its records.
        labels: (records,) class of each record; None if they have none.
        class_names: by class; empty if they have none.
        public: records that lie on every drive.
        left_out: records that lie on none.
    """
    if labels is None:
        return HeldRecords(list(drives), [], [[len(part)] for part in private], public, left_out)
    numbers, places = np.unique(labels, return_inverse=True)
    rows = [np.bincount(places[part], minlength=len(numbers)) for part in private]
    table = np.array(rows, np.int64).reshape(len(drives), len(numbers))
    most = np.sort(np.argsort(-table.sum(axis=0), kind="stable")[:MOST_CLASSES])
    names = [class_names[number] if number < len(class_names) else str(number) for number in numbers[most]]
    counts = table[:, most]
    if len(numbers) > len(most):
        names.append(OTHERS)
        counts = np.column_stack([counts, table.sum(axis=1) - counts.sum(axis=1)])
    return HeldRecords(list(drives), names, counts.tolist(), public, left_out)

"""Partition of a data set among drives: which records lie in which drive's shard."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_agent.common.errors import DataError

Indices = npt.NDArray[np.int64]


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


def partition_by_quantity(
    samples: int, shards: int, concentration: float, generator: np.random.Generator
) -> list[Indices]:
    """Deal `samples` records out at random into shards whose shares are a draw from a Dirichlet distribution.

    A small concentration gives few shards most records, a large one makes them alike. A shard that would be empty gets
    one record of the largest.

    Raises:
        DataError: there are fewer records than shards.
    """
    _check_count(samples, shards)
    shares = generator.dirichlet(np.full(shards, concentration))
    cuts = np.rint(np.cumsum(shares)[:-1] * samples).astype(np.int64)
    pieces = np.split(generator.permutation(samples).astype(np.int64), cuts)
    return _fill_empty([np.sort(piece) for piece in pieces])


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

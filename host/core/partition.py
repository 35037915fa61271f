"""Partition of a data set among drives: which records lie in which drive's shard."""

from __future__ import annotations

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
    if len(labels) < shards:
        raise DataError(f"{len(labels)} records cannot fill {shards} shards; use fewer devices or more data")
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
    if samples < shards:
        raise DataError(f"{samples} records cannot fill {shards} shards; use fewer devices or more data")
    return [np.sort(part) for part in np.array_split(generator.permutation(samples).astype(np.int64), shards)]


def _fill_empty(parts: list[Indices]) -> list[Indices]:
    for number, part in enumerate(parts):
        if len(part) == 0:
            largest = max(range(len(parts)), key=lambda n: len(parts[n]))
            parts[number], parts[largest] = parts[largest][:1], parts[largest][1:]
    return parts

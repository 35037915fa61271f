"""From a job's data section to one shard archive per device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from csd_emu.array import Device
from firmware_agent.errors import ShardError
from firmware_agent.handover import SHARD_FILE
from firmware_agent.shard import REMEDY, open_shard, write_shard
from host.datasets import Dataset, load_dataset
from host.job import DataSection
from host.partition import Indices, partition_dirichlet, partition_evenly


@dataclass(frozen=True)
class ShardRecord:
    """What was written for one device."""

    path: Path
    manifest_sha256: str
    samples: int


def deal_out(dataset: Dataset, data: DataSection, shards: int, seed: int) -> list[Indices]:
    """Return the indices of each shard; they depend on the data, `shards` and `seed` alone.

    Raises:
        DataError: there are fewer records than shards.
    """
    generator = np.random.default_rng([seed, shards])
    if data.partition.dirichlet is None:
        return partition_evenly(len(dataset.labels), shards, generator)
    return partition_dirichlet(dataset.labels, shards, data.partition.dirichlet, generator)


def write_shards(devices: Sequence[Device], data: DataSection, seed: int, folder: Path) -> list[ShardRecord]:
    """Write ``folder/NAME/shard.tar`` for each device, and return what was written, in the order of `devices`.

    Raises:
        DataError: the data set is unknown or too small.
    """
    dataset = load_dataset(data.source, seed)
    records = []
    for device, indices in zip(devices, deal_out(dataset, data, len(devices), seed), strict=True):
        path = folder / device.name / SHARD_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = write_shard(path, dataset.name, dataset.images[indices], dataset.labels[indices])
        records.append(ShardRecord(path, digest, len(indices)))
    return records


def check_shards(expected: Mapping[str, str], folder: Path) -> None:
    """Check the archives that `write_shards` made: their hashes, and that they are the `expected` ones.

    Args:
        expected: device name -> its manifest's sha256.
        folder: the one that was given to `write_shards`.

    Raises:
        ShardError: an archive is damaged, or another one.
    """
    for device, manifest_sha256 in expected.items():
        path = folder / device / SHARD_FILE
        if open_shard(path).manifest_sha256 != manifest_sha256:
            raise ShardError(f"{path}: is not the shard that this array was made with; {REMEDY}")

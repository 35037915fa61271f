"""Records of the drives: one shard archive per device, or a check of what lies in a drive in place."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from csd_emu.config.array_file import QEMU, Device
from csd_emu.util.node_names import HOST
from firmware_agent.common.atomic_files import make_folder, shared_mode
from firmware_agent.common.datafiles import open_source
from firmware_agent.common.datafiles.record_set import LENGTH
from firmware_agent.common.errors import DataError, PluginError, ProtocolError, ShardError, user_errors
from firmware_agent.common.frames.session_frames import Holding
from firmware_agent.common.handover import SHARD_FILE
from firmware_agent.common.shard import REMEDY, open_shard, write_shard
from host.config.job_file import DataSection, Partition
from host.config.plugins.plugin_loading import Plugin, describe_error
from host.config.plugins.plugin_section import accepted
from host.core.datasets import Dataset, read_fields
from host.core.partition import (
    HeldRecords,
    Indices,
    count_held,
    partition_by_class,
    partition_by_value,
    partition_dirichlet,
    partition_evenly,
)

# A random sample of fewer has a direction of its own (see `host.training.sync.gradient_direction`).
LEAST_ALIKE = 256


@dataclass(frozen=True)
class ShardRecord:
    """What was written for one device: `samples` records.

    Of a device with records in place nothing is known before it says hello: the hash is empty.
    """

    path: Path
    manifest_sha256: str
    samples: int


@dataclass(frozen=True)
class ShardAssignment:
    """Which records lie where.

    Attributes:
        private: those of each node, in order.
        public: the pool that lies on all.
        held: how many private ones each drive to which they were dealt holds.
    """

    private: list[Indices]
    public: Indices
    held: HeldRecords

    @property
    def sha256(self) -> str:
        """Hash of all of it."""
        parts = [part.tolist() for part in (*self.private, self.public)]
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def deal_out(
    dataset: Dataset, data: DataSection, nodes: Sequence[Device], seed: int, own: Plugin | None = None
) -> ShardAssignment:
    """Return which records lie where; it depends on the data, the drives' number and `seed` alone.

    The host, if it is among the nodes, holds public records alone; drives with records in place get none at all.

    Args:
        dataset: what is dealt out.
        data: how.
        nodes: to whom.
        seed: of the deal.
        own: the function of the user's that `data` names, loaded.

    Raises:
        DataError: there are fewer private records than drives, or no public one and the host trains, or they do not fit
            to what is asked for.
        PluginError: the user's function failed, or returned what cannot be.
    """
    drives = [node for node in nodes if gets_private(node)]
    generator = np.random.default_rng([seed, len(drives)])
    count = len(dataset)
    pool = count - round((1.0 if data.private is None else data.private) * count)
    pool *= any(node.data is None for node in nodes)
    public = np.sort(generator.permutation(count)[:pool]) if pool else np.empty(0, np.int64)
    if not pool and any(node.name == HOST for node in nodes):
        raise DataError(
            "the host trains on public records, and there are none: the drives' private records do not leave them; set "
            "mode: sync and data.private below 1, or host.trains: false"
        )
    private = np.setdiff1d(np.arange(count), public)
    parts = [np.empty(0, np.int64)] * len(drives)
    if len(private) and drives:
        fields = {name: column[private] for name, column in dataset.fields.items()} if pool else dataset.fields
        try:
            dealt = _split(replace(dataset, fields=fields), len(drives), data.partition, own, generator)
        except DataError as error:
            raise DataError(f"{'.'.join(['data.partition', *data.partition.ways])}: {error}") from error
        parts = [private[part] for part in dealt]
    left_out = len(private) - sum(map(len, parts)) if drives else 0
    held = count_held([d.name for d in drives], parts, dataset.labels, dataset.class_names, len(public), left_out)
    rest = iter(parts)
    each = [next(rest) if gets_private(node) else np.empty(0, np.int64) for node in nodes]
    return ShardAssignment(each, public, held)


def _split(
    records: Dataset, drives: int, partition: Partition, own: Plugin | None, generator: np.random.Generator
) -> list[Indices]:
    """Return the numbers of the records of each drive, sorted; no drive is empty, and no record is on two.

    Raises:
        DataError: the records do not fit to what is asked for.
        PluginError: the user's function failed, or returned what cannot be.
    """
    if partition.function is not None:
        return _split_by_own(own, records, drives, generator)
    if partition.quantity is not None:  # as if all were of one class
        return partition_dirichlet(np.zeros(len(records), np.int64), drives, partition.quantity, generator)
    if partition.column is not None:
        return partition_by_value(_values(records, partition.column), drives, generator)
    if not partition.ways:
        return partition_evenly(len(records), drives, generator)
    if records.labels is None:
        raise DataError(f"{records.name} has no class numbers to deal out by; leave it out")
    labels = records.labels.astype(np.int64)
    if partition.dirichlet is not None:
        return partition_dirichlet(labels, drives, partition.dirichlet, generator)
    return partition_by_class(labels, drives, partition.classes_per_drive or 0, generator)


def _values(records: Dataset, column: str) -> npt.NDArray[np.integer]:
    if (values := records.fields.get(column)) is None:
        raise DataError(f"{records.name} has no field {column!r}, but {', '.join(records.fields)}")
    if values.dtype.kind not in "iu" or values.size != len(records):
        raise DataError(
            f"{column} of {records.name} is not one whole number per record ({values.dtype}{list(values.shape[1:])}); "
            "name such a field"
        )
    return values.reshape(len(records))


def _split_by_own(own: Plugin | None, records: Dataset, drives: int, generator: np.random.Generator) -> list[Indices]:
    """Return what the user's function returns, checked; it cannot change the records.

    Raises:
        DataError: it is not loaded.
        PluginError: it failed, or returned what cannot be.
    """
    if own is None:
        raise DataError("code of your own is not run here; start the drives with csd-emu run, or csd-emu up --job")
    fields = {name: column.view() for name, column in records.fields.items()}
    for column in fields.values():
        column.flags.writeable = False
    given = accepted(own.target, {"fields": fields, "drives": drives, "generator": generator})
    try:
        found: Any = own.target(**own.options, **given)
        parts = [np.asarray(part) for part in found]
    except user_errors() as error:
        raise PluginError(f"{own} failed: {describe_error(error)}") from error
    if problem := _find_problem(parts, drives, len(records)):
        raise PluginError(f"{own} returned {problem}")
    return [np.sort(part).astype(np.int64) for part in parts]


def _find_problem(parts: list[npt.NDArray[Any]], drives: int, count: int) -> str:
    """Return what is wrong with the numbers of records of each drive, and what to do; empty if nothing is."""
    if len(parts) != drives:
        return f"{len(parts)} arrays for {drives} drives; return one per drive"
    for number, part in enumerate(parts):
        where = f"for drive {number}"
        if part.size == 0:
            return f"no record {where}; give each drive one at least"
        if part.ndim != 1 or part.dtype.kind not in "iu":
            return f"{part.dtype}{list(part.shape)} {where}; return a list of whole numbers, those of its records"
        if part.min() < 0 or part.max() >= count:
            wrong = part.min() if part.min() < 0 else part.max()
            return f"record {wrong} {where}; records are 0 to {count - 1}"
    numbers, times = np.unique(np.concatenate(parts), return_counts=True)
    if times.max() > 1:
        return f"record {numbers[times > 1][0]} more than once; give it to one drive alone"
    return ""


def dealt_alike(nodes: Sequence[Device], data: DataSection, sizes: Sequence[int]) -> bool:
    """Return whether all nodes' records are a fair sample of one data set: `LEAST_ALIKE` or more each, at random."""
    dealt = not data.partition.ways and all(node.data is None for node in nodes)
    return dealt and min(sizes, default=0) >= LEAST_ALIKE


def gets_private(node: Device) -> bool:
    """Return whether private records are dealt to a node: to a drive without records of its own."""
    return node.name != HOST and node.data is None


def write_shards(
    devices: Sequence[Device],
    data: DataSection,
    seed: int,
    folder: Path,
    dataset: Dataset,
    among: Sequence[Device] | None = None,
    dealt: ShardAssignment | None = None,
) -> list[ShardRecord]:
    """Write ``folder/NAME/shard.tar`` for each device, and return what was written, in the order of `devices`.

    Private records come first, then the whole public pool, in the same order on every device. For a drive with records
    in place nothing is written, but that a virtual machine's flash is made of what lies at its path here; and nothing
    is known of them before it says hello.

    Args:
        devices: drives, and the host if it trains.
        data: what is dealt out, and how.
        seed: of the split and the deal.
        folder: of the devices' folders.
        dataset: that `data` names.
        among: drives of other servers too, among which records are dealt out; None for `devices` alone.
        dealt: which records lie where, if that was decided already.

    Raises:
        DataError: the data set is too small, or what lies in place for a virtual machine cannot be read.
    """
    nodes = devices if among is None else among
    dealt = deal_out(dataset, data, nodes, seed) if dealt is None else dealt
    own = dict(zip((node.name for node in nodes), dealt.private, strict=True))
    records = []
    make_folder(folder, shared_mode())
    for device in devices:
        private = own[device.name]
        path = folder / device.name / SHARD_FILE
        make_folder(path.parent, 0o700)
        if device.data is not None:
            if device.engine == QEMU:
                _write_flash(path, Path(device.data))
            records.append(ShardRecord(path, "", 0))
            continue
        indices = np.concatenate([private, dealt.public])
        own_fields = {name: column[indices] for name, column in dataset.fields.items()}
        digest = write_shard(path, dataset.name, own_fields, len(private))
        records.append(ShardRecord(path, digest, len(indices)))
    return records


def _write_flash(path: Path, data: Path) -> None:
    """Write the records at `data` as those that have always been in a virtual machine."""
    source = open_source(data)
    write_shard(path, source.kind, read_fields(source.train), class_names=source.train.class_names)


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


@dataclass(frozen=True)
class WantedRecords:
    """What the job's own data set, on which the host evaluates, is like.

    Attributes:
        fields: name -> what each record has of it, for people; not how long ragged ones are padded.
        classes: how many there are.
    """

    fields: Mapping[str, str]
    classes: int

    @classmethod
    def of(cls, dataset: Dataset) -> WantedRecords:
        """Return what fits to `dataset`."""
        fields = _texts({name: (column.dtype.str, column.shape[1:]) for name, column in dataset.fields.items()})
        return cls(fields, dataset.classes)

    def check(self, device: str, holding: Holding | None) -> None:
        """Return if what a drive tells of its records fits.

        Raises:
            ProtocolError: it does not; the message says what both are like.
        """
        if holding is None:
            raise ProtocolError(f"{device} was to train on records in place and has a shard; upgrade its agent")
        fields = _texts({each.name: (each.dtype, each.shape) for each in holding.fields})
        if fields != self.fields:
            theirs, ours = (
                ", ".join(f"{name} {form}" for name, form in sorted(each.items())) for each in (fields, self.fields)
            )
            raise ProtocolError(
                f"{device} holds records of {theirs}, the job's are of {ours}; convert the ones, or set data.source to "
                "a sample of the others"
            )
        if holding.classes > self.classes:
            raise ProtocolError(
                f"{device} holds {holding.classes} classes, the job's data have {self.classes}; correct the labels, or "
                "set data.source to data with all classes"
            )


def _texts(forms: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, str]:
    """Return name -> type and shape of a record, for people; a * for how long ragged ones are padded."""
    return {
        name: f"{np.dtype(dtype)}[{', '.join(map(str, ('*'[: len(shape)], *shape[1:]) if ragged else shape))}]"
        for name, (dtype, shape) in forms.items()
        for ragged in [name + LENGTH in forms]
    }

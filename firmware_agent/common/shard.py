"""A drive's shard of the data set: arrays on its NVMe namespace, memory-mapped, with a manifest of their hashes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from firmware_agent.common.archive import ArchiveMember, list_archive, read_member, write_archive
from firmware_agent.common.datafiles.record_set import MOST_FIELDS, Column, labels_of
from firmware_agent.common.errors import ShardError
from firmware_agent.common.frames.session_frames import Holding

MANIFEST = "manifest.json"
FORMAT = "csd-shard/3"
_HASH_BLOCK_BYTES = 1 << 20
REMEDY = "make the array again with csd-emu down and csd-emu up"


class ArrayEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of a shard: the .npy file that holds it, and what must be true of it."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str


class ShardManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a shard holds: one array for each field of its records.

    `classes` are the records of each class, empty where records have none. `samples` is the length of the first axis of
    every array; the first `private_samples` of them are on this drive alone, the others are the public pool, which lies
    on every drive in the same order. `class_names` are of records in place, if they have any.
    """

    format: str
    source: str
    samples: int
    private_samples: int
    classes: tuple[int, ...]
    arrays: dict[str, ArrayEntry]
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shard:
    """A shard that was opened and whose hashes were checked.

    Attributes:
        path: the archive, a file or a block device; or where records lie in place.
        manifest: what it holds.
        manifest_sha256: hex digest of the manifest's bytes; the host compares it with the one that it wrote.
        fields: name -> (samples, ...) as stored; memory-mapped or read when asked for, read-only.
        holding: what the host is told of records that lie in place; None of an archive that it wrote.
    """

    path: Path
    manifest: ShardManifest
    manifest_sha256: str
    fields: Mapping[str, Column]
    holding: Holding | None = None

    @property
    def samples(self) -> int:
        """How many records there are."""
        return self.manifest.samples


def write_shard(
    path: Path,
    source: str,
    fields: Mapping[str, npt.NDArray[Any]],
    private_samples: int | None = None,
    class_names: Sequence[str] = (),
) -> str:
    """Write a shard archive and return its manifest's sha256.

    Args:
        path: the archive to write.
        source: the data set's name, for people.
        fields: name -> (samples, ...) numbers; class numbers, if there are any, from 0.
        private_samples: so many, the first, are private, the others public; None for all.
        class_names: by number.

    Raises:
        ShardError: the arrays do not have one length, or it is zero, or less than `private_samples`.
    """
    lengths = {len(column) for column in fields.values()}
    samples = min(lengths, default=0)
    if len(lengths) != 1 or not samples:
        told = " and ".join(f"{len(column)} of {name}" for name, column in fields.items())
        raise ShardError(f"{path}: {told or 'no field'} do not make a shard")
    private = samples if private_samples is None else private_samples
    if not 0 <= private <= samples:
        raise ShardError(f"{path}: {private} of {samples} records cannot be private")
    files = {name: _npy_bytes(column) for name, column in fields.items()}
    labels = labels_of(fields)
    manifest = ShardManifest(
        format=FORMAT,
        source=source,
        samples=samples,
        private_samples=private,
        classes=() if labels is None else tuple(np.bincount(labels, minlength=len(class_names)).tolist()),
        arrays={
            name: ArrayEntry(f"{name}.npy", column.dtype.str, column.shape, hex_sha256(files[name]))
            for name, column in fields.items()
        },
        class_names=tuple(class_names),
    )
    encoded = msgspec.json.encode(manifest)
    write_archive(path, {MANIFEST: encoded, **{f"{name}.npy": content for name, content in files.items()}})
    return hex_sha256(encoded)


def open_shard(path: Path) -> Shard:
    """Open the shard archive at `path` (a file or a block device), and check every hash.

    Raises:
        ShardError: the archive is damaged or does not match its manifest.
    """
    encoded = read_member(path, MANIFEST)
    try:
        manifest = msgspec.json.decode(encoded, type=ShardManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ShardError(f"{path}: {MANIFEST} cannot be read ({error}); {REMEDY}") from error
    if manifest.format != FORMAT:
        raise ShardError(f"{path}: format {manifest.format!r}, this agent reads {FORMAT!r}; upgrade the agent")
    members = list_archive(path)
    arrays = {name: _open_array(path, members, name, entry) for name, entry in manifest.arrays.items()}
    _check_lengths(path, manifest, arrays)
    return Shard(path, manifest, hex_sha256(encoded), arrays)


def _check_lengths(path: Path, manifest: ShardManifest, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
    if not arrays or len(arrays) > MOST_FIELDS:
        raise ShardError(f"{path}: the manifest has {len(arrays)} arrays, of 1 to {MOST_FIELDS}; {REMEDY}")
    if any(len(array) != manifest.samples for array in arrays.values()):
        raise ShardError(f"{path}: arrays do not have the manifest's {manifest.samples} samples; {REMEDY}")
    if not 0 <= manifest.private_samples <= manifest.samples:
        raise ShardError(f"{path}: {manifest.private_samples} of {manifest.samples} records are private; {REMEDY}")


def _open_array(path: Path, members: Mapping[str, ArchiveMember], name: str, entry: ArrayEntry) -> npt.NDArray[Any]:
    member = members.get(entry.file)
    if member is None:
        raise ShardError(f"{path}: {entry.file} is missing; {REMEDY}")
    _check_hash(path, member, entry)
    with open(path, "rb") as stream:
        stream.seek(member.offset)
        try:
            np.lib.format.read_magic(stream)
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        except ValueError as error:
            raise ShardError(f"{path}: {entry.file} is no array ({error}); {REMEDY}") from error
        offset = stream.tell()
    if dtype.str != entry.dtype or shape != entry.shape or dtype.hasobject:
        raise ShardError(f"{path}: {name} is {dtype.str}{shape}, the manifest says {entry.dtype}{entry.shape}")
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)


def _check_hash(path: Path, member: ArchiveMember, entry: ArrayEntry) -> None:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        stream.seek(member.offset)
        left = member.size
        while left:
            block = stream.read(min(_HASH_BLOCK_BYTES, left))
            if not block:
                raise ShardError(f"{path}: {entry.file} is cut short; {REMEDY}")
            digest.update(block)
            left -= len(block)
    if digest.hexdigest() != entry.sha256:
        raise ShardError(f"{path}: {entry.file} does not match its sha256; {REMEDY}")


def _npy_bytes(array: npt.NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def hex_sha256(content: bytes) -> str:
    """Return the hash of some bytes as manifests have it."""
    return hashlib.sha256(content).hexdigest()

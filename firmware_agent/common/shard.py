"""A drive's shard of the data set: arrays on its NVMe namespace, memory-mapped, with a manifest of their hashes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from firmware_agent.common.archive import ArchiveMember, list_archive, read_member, write_archive
from firmware_agent.common.datafiles.labelled import Images
from firmware_agent.common.errors import ShardError
from firmware_agent.common.frames.session_frames import Holding

MANIFEST = "manifest.json"
FORMAT = "csd-shard/2"
_HASH_BLOCK_BYTES = 1 << 20
REMEDY = "make the array again with csd-emu down and csd-emu up"


class ArrayEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of a shard: the .npy file that holds it, and what must be true of it."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str


class ShardManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a shard holds.

    `samples` is the length of the first axis of every array; the first `private_samples` of them are on this drive
    alone, the others are the public pool, which lies on every drive in the same order.
    """

    format: str
    source: str
    samples: int
    private_samples: int
    classes: tuple[int, ...]
    arrays: dict[str, ArrayEntry]


@dataclass(frozen=True)
class Shard:
    """A shard that was opened and whose hashes were checked.

    Attributes:
        path: the archive, a file or a block device; or where records lie in place.
        manifest: what it holds.
        manifest_sha256: hex digest of the manifest's bytes; the host compares it with the one that it wrote.
        images: (samples, ...) as stored, usually uint8; memory-mapped or read when asked for, read-only.
        labels: (samples,) int64 class numbers; read-only.
        holding: what the host is told of records that lie in place; None of an archive that it wrote.
    """

    path: Path
    manifest: ShardManifest
    manifest_sha256: str
    images: Images
    labels: npt.NDArray[np.int64]
    holding: Holding | None = None


def write_shard(
    path: Path,
    source: str,
    images: npt.NDArray[np.generic],
    labels: npt.NDArray[np.int64],
    private_samples: int | None = None,
) -> str:
    """Write a shard archive and return its manifest's sha256.

    Args:
        path: the archive to write.
        source: the data set's name, for people.
        images: (samples, ...) any fixed-size dtype.
        labels: (samples,) class numbers.
        private_samples: so many, the first, are private, the others public; None for all.

    Raises:
        ShardError: the arrays do not have one length, or it is zero, or less than `private_samples`.
    """
    if len(images) != len(labels) or len(labels) == 0:
        raise ShardError(f"{path}: {len(images)} images and {len(labels)} labels do not make a shard")
    private = len(labels) if private_samples is None else private_samples
    if not 0 <= private <= len(labels):
        raise ShardError(f"{path}: {private} of {len(labels)} records cannot be private")
    files = {"images.npy": _npy_bytes(images), "labels.npy": _npy_bytes(labels.astype(np.int64))}
    manifest = ShardManifest(
        format=FORMAT,
        source=source,
        samples=len(labels),
        private_samples=private,
        classes=tuple(int(c) for c in np.bincount(labels)),
        arrays={
            "images": ArrayEntry("images.npy", images.dtype.str, images.shape, hex_sha256(files["images.npy"])),
            "labels": ArrayEntry("labels.npy", "<i8", labels.shape, hex_sha256(files["labels.npy"])),
        },
    )
    encoded = msgspec.json.encode(manifest)
    write_archive(path, {MANIFEST: encoded, **files})
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
    return Shard(path, manifest, hex_sha256(encoded), arrays["images"], arrays["labels"])


def _check_lengths(path: Path, manifest: ShardManifest, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
    missing = {"images", "labels"} - set(arrays)
    if missing:
        raise ShardError(f"{path}: the manifest has no {' and no '.join(sorted(missing))}; {REMEDY}")
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

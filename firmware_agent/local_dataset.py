"""Records that a drive already holds and trains on in place; only their numbers are reported to the host.

Their content is hashed once and then known by the files' sizes and times, for on a drive that may take minutes.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec
import numpy as np

from firmware_agent.common.atomic_files import read_file, replace_file
from firmware_agent.common.datafiles import RecordSet, blocks_of, open_source
from firmware_agent.common.datafiles.record_set import labels_of
from firmware_agent.common.frames.frame_fields import TensorSpec
from firmware_agent.common.frames.session_frames import Holding
from firmware_agent.common.shard import ArrayEntry, Shard, ShardManifest, hex_sha256

log = logging.getLogger(__name__)
FORMAT = "csd-in-place/1"
_MOST_CACHE_BYTES = 1 << 16


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of an earlier look: the files' fingerprint then, and the hash of each field's content."""

    fingerprint: str
    sha256: dict[str, str]


def open_holding(path: Path, cache: Path | None = None) -> Shard:
    """Open the records at `path` as a shard, all of them private.

    Args:
        path: of what `firmware_agent.common.datafiles` reads.
        cache: file in which the hash of their content is kept; None to hash every time.

    Raises:
        DataError: they cannot be read, or a record breaks the rules.
    """
    source = open_source(path)
    data = source.train
    labels, hashes = labels_of(data.fields), _content_sha256(data, cache)
    manifest = ShardManifest(
        format=FORMAT,
        source=source.kind,
        samples=len(data),
        private_samples=len(data),
        classes=() if labels is None else tuple(np.bincount(labels, minlength=data.classes).tolist()),
        arrays={
            name: ArrayEntry(name, column.dtype.str, tuple(column.shape), hashes[name])
            for name, column in data.fields.items()
        },
        class_names=data.class_names,
    )
    digest = hex_sha256(msgspec.json.encode(manifest))
    return Shard(path, manifest, digest, data.fields, describe(manifest))


def describe(manifest: ShardManifest) -> Holding:
    """Return what the host is told of records: their kind and form, and how many classes; nothing of any record."""
    fields = [TensorSpec(name, entry.dtype, entry.shape[1:]) for name, entry in manifest.arrays.items()]
    return Holding(manifest.source, fields, len(manifest.classes), list(manifest.class_names))


def fingerprint(data: RecordSet) -> str:
    """Return what changes when a file of the data is replaced or written to: names, sizes, times."""
    digest = hashlib.sha256()
    for file in data.files:
        facts = file.stat()
        digest.update(f"{file}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _content_sha256(data: RecordSet, cache: Path | None) -> dict[str, str]:
    mark = fingerprint(data)
    known = None if cache is None else _read(cache)
    if known is not None and known.fingerprint == mark:
        return known.sha256
    digests = {}
    for name, column in data.fields.items():
        digest = hashlib.sha256()
        for block in blocks_of(column, str(data.files[0])):
            digest.update(block)
        digests[name] = digest.hexdigest()
    if cache is not None:
        _write(cache, _Known(mark, digests))
    return digests


def _read(cache: Path) -> _Known | None:
    try:
        return msgspec.json.decode(read_file(cache, _MOST_CACHE_BYTES), type=_Known)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _write(cache: Path, known: _Known) -> None:
    try:
        replace_file(cache, msgspec.json.encode(known))
    except OSError as error:
        log.warning("%s cannot be written (%s): the records are hashed again at the next start", cache, error)

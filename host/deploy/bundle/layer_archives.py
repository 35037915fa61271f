"""Layers: folders packed into a few compressed tar archives, the same bytes for the same files."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from csd_emu.util.file_hash import file_sha256
from firmware_agent.common.errors import ImageError

ID_CHARACTERS = 16
_MANIFEST = "layer.json"
_BLOCK_BYTES = 512
# A file takes whole blocks of the drive's file system, and its own entry.
_FILE_BYTES = 4096
# One that no tar calls implausibly old.
_MODIFIED_UNIX_SECONDS = 946_684_800
_LEVEL = 6


class LayerArchive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One archive of a layer.

    Attributes:
        file: its name on the server.
        sha256: of the archive.
        packed_bytes, unpacked_bytes: its size, and what its files take on a drive.
    """

    file: str
    sha256: str
    packed_bytes: int
    unpacked_bytes: int


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder as it will lie on a drive.

    Attributes:
        id: names it; the first digits of a SHA-256.
        parts: to be unpacked over each other, in any order.
    """

    id: str
    parts: tuple[LayerArchive, ...]


def pack_layer(tree: Path, target: Path, part_bytes: int) -> Layer:
    """Pack the folder `tree` into archives of about `part_bytes`, unpacked, in the folder `target`.

    Owners, times, and modes beyond "may be run" do not count. The ID of a layer in one part is that of its archive.
    """
    shares = _share_out(tree, part_bytes)
    with ThreadPoolExecutor() as pool:
        parts = tuple(pool.map(lambda numbered: _pack(tree, target, *numbered), enumerate(shares)))
    sums = "".join(part.sha256 for part in parts)
    digest = sums if len(parts) == 1 else hashlib.sha256(sums.encode()).hexdigest()
    layer = Layer(digest[:ID_CHARACTERS], parts)
    (target / _MANIFEST).write_bytes(msgspec.json.encode(layer))
    return layer


def read_layer(folder: Path) -> Layer:
    """Return what `pack_layer` left in a folder.

    Raises:
        ImageError: it is damaged.
    """
    try:
        layer = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Layer)
        for part in layer.parts:
            if (folder / part.file).stat().st_size != part.packed_bytes:
                raise ImageError(f"{folder / part.file}: has another size than it was made with; remove {folder}")
    except (OSError, msgspec.MsgspecError) as error:
        raise ImageError(f"{folder}: this bundle is damaged ({error}); remove the folder and run it again") from error
    return layer


def _share_out(tree: Path, part_bytes: int) -> list[list[Path]]:
    """Return the members in order of their names, in shares; a large file has one of its own."""
    shares: list[list[Path]] = [[]]
    size = 0
    for path in sorted(tree.rglob("*"), key=lambda path: path.relative_to(tree).as_posix()):
        added = _unpacked(path)
        if shares[-1] and size + added > part_bytes:
            shares.append([])
            size = 0
        shares[-1].append(path)
        size += added
    return shares


def _pack(tree: Path, target: Path, number: int, members: Sequence[Path]) -> LayerArchive:
    file = target / f"{number:02d}.tar.gz"
    with (
        open(file, "wb") as raw,
        gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in members:
            _add(tar, tree, path)
    return LayerArchive(file.name, file_sha256(file), file.stat().st_size, sum(_unpacked(path) for path in members))


def _add(tar: tarfile.TarFile, tree: Path, path: Path) -> None:
    info = tarfile.TarInfo(path.relative_to(tree).as_posix())
    info.mtime = _MODIFIED_UNIX_SECONDS
    if stat.S_ISLNK((found := path.lstat()).st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        tar.addfile(info)
    elif stat.S_ISDIR(found.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    elif stat.S_ISREG(found.st_mode):
        info.size, info.mode = found.st_size, 0o755 if found.st_mode & 0o111 else 0o644
        with open(path, "rb") as source:
            tar.addfile(info, source)
    else:
        raise ImageError(f"{path}: is no file, folder or link; a bundle cannot hold it")


def _unpacked(path: Path) -> int:
    found = path.lstat()
    size = found.st_size if stat.S_ISREG(found.st_mode) else 0
    return -(-size // _FILE_BYTES) * _FILE_BYTES + _BLOCK_BYTES

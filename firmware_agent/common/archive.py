"""An archive of files that can be read in place from a block device, a file, or memory-mapped: plain tar.

A drive's namespaces carry one each, so `tar tvf /dev/nvme0n1` shows what a device was given.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firmware_agent.common.atomic_files import replacing
from firmware_agent.common.errors import ShardError


@dataclass(frozen=True)
class ArchiveMember:
    """Where a file lies inside the archive, in bytes from its start."""

    offset: int
    size: int


def write_archive(path: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` (name -> content) as a tar of mode 0600, replacing `path` in one step."""
    with replacing(path, 0o600) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def list_archive(path: Path) -> dict[str, ArchiveMember]:
    """Return the regular files of the archive at `path`, a file or a block device.

    Raises:
        ShardError: there is no readable archive at `path`.
    """
    try:
        with open(path, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            return {m.name: ArchiveMember(m.offset_data, m.size) for m in tar if m.isfile()}
    except (tarfile.TarError, OSError) as error:
        raise ShardError(f"{path}: not a readable archive ({error}); make the array again with csd-emu up") from error


def read_member(path: Path, name: str) -> bytes:
    """Return the content of one file of the archive.

    Raises:
        ShardError: the archive cannot be read, is cut short, or has no such file.
    """
    member = list_archive(path).get(name)
    if member is None:
        raise ShardError(f"{path}: has no {name}; make the array again with csd-emu up")
    with open(path, "rb") as stream:
        stream.seek(member.offset)
        content = stream.read(member.size)
    if len(content) != member.size:
        raise ShardError(f"{path}: {name} is cut short; make the array again with csd-emu up")
    return content

"""Writes the archive format of an initramfs (cpio, "new ASCII"), so that no tool and no root is needed."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

_ALIGNMENT = 4
_TRAILER = "TRAILER!!!"
# Any fixed date will do; zero would look like an error in the guest.
_TIME_SECONDS = 1


@dataclass(frozen=True)
class Entry:
    """A file or folder: its path without a leading slash, permission bits, and content (None for a folder)."""

    path: str
    mode: int
    content: bytes | None = None


def archive(entries: Iterable[Entry]) -> bytes:
    """Return the archive; everything belongs to root, and missing parent folders are added with mode 0755."""
    blocks: list[bytes] = []
    made: set[str] = set()
    for entry in entries:
        parents = [str(parent) for parent in reversed(PurePosixPath(entry.path).parents) if str(parent) != "."]
        for parent in parents:
            if parent not in made:
                blocks.append(_block(Entry(parent, 0o755), len(blocks) + 1))
                made.add(parent)
        if entry.content is not None or entry.path not in made:
            blocks.append(_block(entry, len(blocks) + 1))
        made.add(entry.path)
    return b"".join(blocks) + _record(_TRAILER, 0, b"", 0)


def _block(entry: Entry, inode: int) -> bytes:
    kind = stat.S_IFDIR if entry.content is None else stat.S_IFREG
    return _record(entry.path, kind | entry.mode, entry.content or b"", inode)


def _record(name: str, mode: int, content: bytes, inode: int) -> bytes:
    encoded = name.encode() + b"\0"
    fields = [inode, mode, 0, 0, 1, _TIME_SECONDS, len(content), 0, 0, 0, 0, len(encoded), 0]
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + encoded) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)

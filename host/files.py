"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PARTIAL = ".partial"


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one step, in place of what was there; on disk when this returns.

    Raises:
        OSError: it cannot be written; `path` is as it was, and nothing lies beside it.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        with open(partial, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    _sync_folder(path.parent)


def remove_partial(path: Path) -> None:
    """Remove what a killed process left of a `replace_file`."""
    path.with_name(path.name + PARTIAL).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

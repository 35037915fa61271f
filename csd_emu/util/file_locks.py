"""Locks that processes hold on files and folders; the kernel gives one back with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FILE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


@contextlib.contextmanager
def locked(path: Path, flags: int = FOLDER) -> Iterator[None]:
    """Hold the lock on a folder, or on a `FILE`, which is made if it is missing; waits for whoever holds it.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take the lock on an open file or folder, if it is free for this `kind`; return whether it is held now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""Lock of a process that keeps an array up in the foreground; the kernel gives it back if the process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from csd_emu.util.deadline import Deadline
from firmware_agent.common.atomic_files import make_folder, shared_mode
from firmware_agent.common.errors import EnvironmentUnfit

# Others hold the lock for a moment, to see whether anyone else does.
_LOOK_SECONDS, _POLL_SECONDS = 2.0, 0.05


@contextlib.contextmanager
def present(path: Path) -> Iterator[None]:
    """Hold the lock at `path` inside the block; the file is there only then.

    Raises:
        EnvironmentUnfit: another process holds it, or it cannot be made.
    """
    try:
        make_folder(path.parent, shared_mode())
        descriptor = _take(path, Deadline(_LOOK_SECONDS))
    except OSError as error:
        raise EnvironmentUnfit(f"{path} cannot be made ({error.strerror}); make its folder writable") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def is_present(path: Path) -> bool:
    """Return whether a process holds the lock at `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _take(path: Path, deadline: Deadline) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        # Between open and lock another process may have ended and removed the file.
        if _lock(descriptor, fcntl.LOCK_EX) and path.exists() and os.fstat(descriptor).st_ino == path.lstat().st_ino:
            return descriptor
        os.close(descriptor)
        if deadline.expired:
            raise EnvironmentUnfit(f"another process keeps this array up already ({path} is locked); end it first")
        threading.Event().wait(_POLL_SECONDS)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

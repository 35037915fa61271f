"""Files of the host: written whole or not at all, and read only where they are nobody else's."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from firmware_agent.common.atomic_files import read_file, replace_file
from firmware_agent.common.errors import ConfigurationError, CsdError, EnvironmentUnfit

T = TypeVar("T")

SAFE_VARIABLE = "CSD_EMU_SAFE_DIRECTORIES"
# Of a file that csd-emu wrote for itself.
_MOST_BYTES = 64 << 20


def write_whole(
    path: Path, content: bytes, remedy: str, what: str = "", *, mode: int | None = None, folder: bool = False
) -> None:
    """Write a file in one step (see `replace_file`).

    Args:
        path: the file.
        content: all of it.
        remedy: for the error: what to do.
        what: for the error: what the file is, such as ``the baseline``.
        mode: permissions; by default the umask's.
        folder: whether the folder is made if it is missing.

    Raises:
        EnvironmentUnfit: it cannot be written; `path` is as it was.
    """
    with writing(path, remedy, what):
        if folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content, mode)


def check_writable(path: Path, remedy: str, what: str = "", *, folder: bool = False) -> None:
    """Return if a file can be written, which is asked before work of many minutes; no file is left.

    Args:
        path: the file.
        remedy: for the error: what to do.
        what: for the error: what the file is, such as ``the baseline``.
        folder: whether the folder is made if it is missing.

    Raises:
        EnvironmentUnfit: it cannot.
    """
    with writing(path, remedy, what):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()


@contextlib.contextmanager
def writing(path: Path, remedy: str, what: str = "") -> Iterator[None]:
    """Say what to do if the block cannot write (see `write_whole`).

    Raises:
        EnvironmentUnfit: it cannot.
    """
    try:
        yield
    except OSError as error:
        told = f"{path}: {what}".rstrip(" ")
        raise EnvironmentUnfit(f"{told} cannot be written ({error.strerror or error}); {remedy}") from error


def read_whole(path: Path, decode: Callable[[bytes], T], kind: type[CsdError], remedy: str) -> T | None:
    """Return what `decode` makes of a file that csd-emu wrote for itself; None if there is no such file.

    Args:
        path: the file.
        decode: raises msgspec's errors where the content is wrong.
        kind: of the error.
        remedy: for the error: what to do.

    Raises:
        CsdError: of that kind: the file is damaged, or cannot be read.
    """
    try:
        return decode(read_file(path, _MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise kind(f"{path}: is damaged, or cannot be read ({error}); {remedy}") from error


def check_owner(folder: Path, *files: str, trusted: bool = False) -> None:
    """Return if a folder, and those of its `files` that are there, belong to this user or to root.

    Of a link, both itself and what it leads to count. What lies in a folder decides what is run and written; so one of
    another user is used only if that is said: by `trusted`, or by its path in ``$CSD_EMU_SAFE_DIRECTORIES`` (several
    are separated by ``:``; ``*`` stands for all).

    Raises:
        ConfigurationError: one is another user's.
    """
    if trusted or _is_safe(folder):
        return
    for path in (folder, *(folder / name for name in files)):
        for follow in (False, True):
            try:
                owner = path.stat(follow_symlinks=follow).st_uid
            except OSError:  # whoever reads it says so
                continue
            if owner not in (os.geteuid(), 0):
                raise ConfigurationError(
                    f"{path}: belongs to another user (uid {owner}), who decides what is run and written there; copy "
                    f"it, or if you trust that user give --trust, or put {folder.absolute()} into ${SAFE_VARIABLE}"
                )


def is_own(folder: Path, *files: str) -> bool:
    """Return whether `check_owner` lets a folder and its `files` pass without trust."""
    try:
        check_owner(folder, *files)
    except ConfigurationError:
        return False
    return True


def _is_safe(folder: Path) -> bool:
    named = [each for each in os.environ.get(SAFE_VARIABLE, "").split(os.pathsep) if each]
    return "*" in named or folder.resolve() in {Path(each).expanduser().resolve() for each in named}

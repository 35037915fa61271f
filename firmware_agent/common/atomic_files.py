"""Files replaced as a whole, read up to a bound, and folders with a mode of their own: for drive and host alike.

What another user may have put in a file's place is never followed: a temporary file has a random name and is made
exclusively, and everything happens in the folder that was opened, wherever its name leads by then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PARTIAL = ".partial"
_RANDOM_BYTES = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BLOCK_BYTES = 1 << 20


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write `content` to `path` in one step, in place of what was there; on disk when this returns.

    Args:
        path: the file; a link of this name is replaced, not followed.
        content: all of it.
        mode: permissions, whatever the umask; by default the umask's.

    Raises:
        OSError: it cannot be written; `path` is as it was, and nothing lies beside it.
    """
    with replacing(path, mode) as stream:
        stream.write(content)


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Give a stream whose content takes the place of `path` when the block ends (see `replace_file`)."""
    partial = f"{path.name}.{secrets.token_hex(_RANDOM_BYTES)}{PARTIAL}"
    folder = os.open(path.parent, _FOLDER)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o666 if mode is None else mode, dir_fd=folder)
        try:
            with open(descriptor, "wb") as stream:
                if mode is not None:
                    os.fchmod(descriptor, mode)
                yield stream
                stream.flush()
                os.fsync(descriptor)
            os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_partial(path: Path) -> None:
    """Remove what killed processes left of a `replace_file`."""
    for entry in list(path.parent.iterdir()):
        if entry.name.startswith(f"{path.name}.") and entry.name.endswith(PARTIAL):
            entry.unlink(missing_ok=True)


def append_file(path: Path, mode: int = 0o666) -> IO[bytes]:
    """Open `path`, which is made if it is missing, for appending, without a buffer.

    Raises:
        OSError: it cannot be opened, or is a link or no regular file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        _check_regular(descriptor)
        return open(descriptor, "ab", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, most_bytes: int, *, special: bool = False, follow: bool = True) -> bytes:
    """Return the content of `path`.

    Args:
        path: the file.
        most_bytes: it may have.
        special: whether it may be a pipe or a device, which a person has named on the command line.
        follow: whether it may be a link.

    Raises:
        OSError: it cannot be read, has more bytes, or is no regular file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if special else os.O_NONBLOCK) | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    with open(descriptor, "rb") as stream:
        if not special:
            _check_regular(descriptor)
        content = bytearray()
        while len(content) <= most_bytes and (block := stream.read(min(_BLOCK_BYTES, most_bytes + 1 - len(content)))):
            content += block
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"has more than {most_bytes} bytes, which is the most that is read")
    return bytes(content)


def read_lines(path: Path, most_bytes: int) -> Iterator[bytes]:
    """Yield the lines of `path` with their ends; a line may have `most_bytes`.

    Raises:
        OSError: as `read_file`, for a line.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        _check_regular(descriptor)
        while line := stream.readline(most_bytes + 1):
            if len(line) > most_bytes:
                raise OSError(
                    errno.EFBIG, f"has a line of more than {most_bytes} bytes, which is the most that is read"
                )
            yield line


def shared_mode() -> int:
    """Return the permissions of a folder of state: root's is passed through by the user under whom QEMU runs."""
    return 0o711 if os.geteuid() == 0 else 0o700


def make_folder(path: Path, mode: int) -> None:
    """Make the folder at `path` and those above it that are missing, each with `mode`, whatever the umask.

    A folder that is there already keeps its permissions: it may be one that others use too, such as ``/tmp``.

    Raises:
        OSError: one cannot be made, or something else has its name.
    """
    for folder in (*reversed(path.parents), path):
        try:
            if folder.is_dir():
                continue
            folder.mkdir(mode)
            folder.chmod(mode)
        except FileExistsError:
            if not folder.is_dir():
                raise


def give_away(path: Path, uid: int, gid: int) -> None:
    """Make a file or folder another user's, and nothing that a link of its name leads to.

    Raises:
        OSError: it is a link, or a file with a second name: then it would be given away elsewhere too.
    """
    folder = os.open(path.parent, _FOLDER | os.O_NOFOLLOW)
    try:
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISDIR(facts.st_mode):
                _check_regular(descriptor)
                if facts.st_nlink != 1:
                    raise OSError(errno.EMLINK, "has another name elsewhere")
            os.fchown(descriptor, uid, gid)
        finally:
            os.close(descriptor)
    finally:
        os.close(folder)


def enter_folder(parent: int, name: str, mode: int) -> int:
    """Return a descriptor of the folder `name` in the open folder `parent`, made if it is missing; close it.

    Raises:
        OSError: it cannot be made, or is a link or something else.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)


def _check_regular(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "is no regular file")

"""A shell on a drive: commands and copies over one SSH connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from csd_emu.deadline import Deadline
from csd_emu.remote.inventory import DriveEntry

OnCopied = Callable[[int, int], None]
"""Is called with the bytes that lie on the drive and those of the whole file."""


class Answer(NamedTuple):
    """What a command on a drive left: its exit code and what it wrote."""

    code: int
    out: str
    err: str


class Shell(Protocol):
    """Speaks with one drive. All calls block; whoever speaks with several makes them in threads."""

    drive: DriveEntry

    def run(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> Answer:
        """Run a line of POSIX shell and return its answer, whatever its exit code.

        Args:
            command: what to run.
            deadline: by which it must have ended.
            stdin: what it reads.
            root: whether it needs root's rights: `sudo -n` if the user is another.

        Raises:
            DriveUnreachable: the connection broke, or the deadline passed.
        """

    def check(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> str:
        """As `run`, but return what was written, without white space at its end.

        Raises:
            DriveUnfit: the exit code was not 0; the message has the last line that was written to stderr.
            DriveUnreachable: the connection broke, or the deadline passed.
        """

    def copy(self, source: Path, target: PurePosixPath, deadline: Deadline, show: OnCopied, root: bool = False) -> None:
        """Copy a file to the drive; what lies there of an earlier, cut attempt stays, and only the rest is sent.

        Whether the whole is right the caller checks, by its sha256.

        Raises:
            DriveUnreachable: the connection broke, or the deadline passed; call again to go on.
            DriveUnfit: it cannot be written there.
        """

    def close(self) -> None:
        """End the connection."""


def open_shell(drive: DriveEntry, deadline: Deadline) -> contextlib.closing[Shell]:
    """Connect to a drive with `fabric`, checking its host key against known_hosts.

    Raises:
        HostKeyRefused: its host key is not the known one, or none is known.
        DriveUnreachable: nobody answers, or the login was refused.
    """
    raise NotImplementedError  # helper "deploy"

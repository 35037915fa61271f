"""A shell on a drive: commands and copies over one SSH connection, which is opened again when it broke."""

from __future__ import annotations

import contextlib
import io
import shlex
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

import paramiko

from csd_emu.engines.remote.inventory import DriveEntry
from csd_emu.engines.remote.openssh import find_route
from csd_emu.engines.remote.ssh_channel import MAX_OUTPUT_BYTES, OnSent, OutOfTime, TooMuch, execute, forward_back
from csd_emu.engines.remote.ssh_connect import Connected
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DriveUnfit, DriveUnreachable, HostKeyRefused
from firmware_agent.common.units import format_bytes

OnCopied = Callable[[int, int], None]
"""Is called with the bytes that lie on the drive and those of the whole file."""

# A cut copy goes on at a whole number of blocks.
BLOCK_BYTES = 2**16
_SHOWN = 60


class CommandResult(NamedTuple):
    """What a command on a drive left: its exit code (-1: a signal ended it) and what it wrote."""

    code: int
    out: str
    err: str


class Shell(Protocol):
    """Speaks with one drive. All calls block; whoever speaks with several makes them in threads."""

    drive: DriveEntry

    def run(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> CommandResult:
        """Run a line of POSIX shell and return its answer, whatever its exit code.

        Args:
            command: what to run.
            deadline: by which it must have ended.
            stdin: what it reads.
            root: whether it needs root's rights: `sudo -n` if the user is another.

        Raises:
            DriveUnreachable: the connection broke, or the deadline passed.
            DriveUnfit: root's rights are needed and cannot be had, or it wrote more than `MAX_OUTPUT_BYTES`.
        """

    def check(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> str:
        """As `run`, but return what was written, without white space at its end.

        Raises:
            DriveUnfit: the exit code was not 0; the message has the last line that was written.
            DriveUnreachable: the connection broke, or the deadline passed.
        """
        if (answer := self.run(command, deadline, stdin, root)).code != 0:
            raise DriveUnfit(
                f"drive {self.drive.name}: `{_shorten(command)}` failed (exit code {answer.code}): {_last(answer)}; "
                "repair that on the drive and try again"
            )
        return answer.out.rstrip()

    def copy(self, source: Path, target: PurePosixPath, deadline: Deadline, show: OnCopied, root: bool = False) -> None:
        """Copy a file to the drive; what lies there of an earlier, cut attempt stays, and only the rest is sent.

        Whether the whole is right the caller checks, by its sha256. The folder of `target` must be there.

        Raises:
            DriveUnreachable: the connection broke, or the deadline passed; call again to go on.
            DriveUnfit: it cannot be written there.
        """

    def forward(self, host: str, port: int, drive_port: int = 0) -> int:
        """Lead a port of the drive's loopback back to ``host:port``, as seen from here, while the connection lasts.

        Args:
            host: address that is dialled from here.
            port: and its port.
            drive_port: on which the drive listens; 0 for any free one.

        Returns:
            The port on which the drive listens.

        Raises:
            DriveUnfit: the drive's SSH server does not allow it, or the port is taken.
        """

    def close(self) -> None:
        """End the connection."""


def open_shell(drive: DriveEntry, deadline: Deadline, write_keys: bool = True) -> contextlib.closing[Shell]:
    """Connect to a drive with `fabric`, checking its host key, and those of jump hosts, against known_hosts.

    Args:
        drive: which one.
        deadline: by which the connection must be there.
        write_keys: whether unknown host keys that OpenSSH's configuration accepts are written to known_hosts.

    Raises:
        HostKeyRefused: a host key is not the known one, or none is known.
        DriveUnreachable: nobody answers, or the login was refused.
        ConfigurationError: OpenSSH's configuration is wrong.
        EnvironmentUnfit: this machine has no OpenSSH client.
    """
    return contextlib.closing(SshShell(drive, Connected(drive.name, find_route(drive), deadline, write_keys)))


class SshShell(Shell):
    """A shell over an SSH connection: one exec channel per command, no SFTP, no terminal."""

    def __init__(self, drive: DriveEntry, connected: Connected) -> None:
        """Speak through `connected`, and end it in the end."""
        self.drive = drive
        self._connected = connected
        # None: not known yet whether commands for root need sudo.
        self._sudo: bool | None = False if connected.route.user == "root" else None

    def run(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> CommandResult:
        """See `Shell`."""
        return self._run(command, deadline, io.BytesIO(stdin), root)

    def copy(self, source: Path, target: PurePosixPath, deadline: Deadline, show: OnCopied, root: bool = False) -> None:
        """See `Shell`."""
        whole = source.stat().st_size
        there, free = self._look(target, deadline, root)
        if there > whole:  # not a part of this file
            there = 0
        if whole - there > free:
            raise self._full(target, whole - there, free)
        show(there, whole)
        if there == whole and whole:
            return
        offset = there - there % BLOCK_BYTES
        # At its own place, rather than appended: what a cut attempt may still be writing is the same bytes there.
        place = shlex.quote(str(target))
        begin = f": > {place} && " if not offset else ""
        # It may be records: what is new is for its owner alone.
        command = f"umask 077; {begin}dd of={place} bs={BLOCK_BYTES} seek={offset // BLOCK_BYTES} conv=notrunc"
        with source.open("rb") as file:
            file.seek(offset)
            answer = self._run(command, deadline, file, root, lambda sent: show(min(whole, offset + sent), whole))
        there, free = self._look(target, deadline, root)
        if answer.code != 0 or there != whole:
            if "no space" in answer.err.lower() or "quota" in answer.err.lower():
                raise self._full(target, whole - there, free)
            raise DriveUnfit(
                f"drive {self.drive.name}: {target} cannot be written: {_last(answer)}; see whether its folder is "
                "there, and who may write to it"
            )
        show(whole, whole)

    def forward(self, host: str, port: int, drive_port: int = 0) -> int:
        """See `Shell`."""
        return forward_back(self._connected.transport, self.drive.name, host, port, drive_port)

    def close(self) -> None:
        """See `Shell`."""
        self._connected.close()

    def _look(self, target: PurePosixPath, deadline: Deadline, root: bool) -> tuple[int, int]:
        """Return the bytes that lie at `target`, 0 if it is not there, and those that are free in its folder."""
        place, folder = shlex.quote(str(target)), shlex.quote(str(target.parent))
        # `wc -c` of busybox would read the whole file, and `stat` may be missing.
        answer = self.check(
            f"if [ -f {place} ]; then set -- $(ls -lnd {place}); echo $5; else echo 0; fi; "
            f"df -Pk {folder} 2>/dev/null | awk 'NR == 2 {{ print $4 }}'",
            deadline,
            root=root,
        ).split()
        if not all(word.isdecimal() for word in answer) or len(answer) not in (1, 2):
            raise DriveUnfit(
                f"drive {self.drive.name}: the size of {target} cannot be read; is there `ls` on the drive?"
            )
        return int(answer[0]), int(answer[1]) * 1024 if len(answer) == 2 else 2**63

    def _full(self, target: PurePosixPath, needed: int, free: int) -> DriveUnfit:
        return DriveUnfit(
            f"drive {self.drive.name}: no space left for {target}: {format_bytes(needed)} are needed and "
            f"{format_bytes(free)} free; free some, or set `folder` in the inventory to a place with more"
        )

    def _run(
        self, command: str, deadline: Deadline, source: BinaryIO, root: bool, on_sent: OnSent | None = None
    ) -> CommandResult:
        line = f"sudo -n -- /bin/sh -c {shlex.quote(command)}" if root and self._needs_sudo(deadline) else command
        name, where, transport = self.drive.name, self._connected.route.where, self._connected.transport
        try:
            done = execute(transport, line, source, deadline, on_sent)
        except OutOfTime as error:
            raise DriveUnreachable(
                f"drive {name}: `{_shorten(command)}` did not end within {deadline.seconds:.0f} s; raise the time "
                "limit, or see what keeps the drive busy"
            ) from error
        except TooMuch as error:
            raise DriveUnfit(
                f"drive {name}: `{_shorten(command)}` wrote more than {format_bytes(MAX_OUTPUT_BYTES)}; ask for less"
            ) from error
        except Exception as error:
            # What the server sent may make paramiko's thread end with any exception, which is then raised here.
            if not isinstance(error, paramiko.SSHException | OSError | EOFError) and transport.is_active():
                raise
            raise DriveUnreachable(
                f"drive {name}: the connection to {where} broke{_in_brackets(error)}; try again"
            ) from error
        if done.code is None:
            raise DriveUnreachable(f"drive {name}: the connection to {where} broke; try again")
        return CommandResult(done.code, done.out.decode(errors="replace"), done.err.decode(errors="replace"))

    def _needs_sudo(self, deadline: Deadline) -> bool:
        if self._sudo is None:
            if (answer := self.run('[ "$(id -u)" = 0 ] && echo root || sudo -n true', deadline)).code != 0:
                raise DriveUnfit(
                    f"drive {self.drive.name}: {self._connected.route.user} has no root rights ({_last(answer)}); "
                    "allow sudo without a password, or set `user: root` in the inventory"
                )
            self._sudo = answer.out.strip() != "root"
        return self._sudo


def _shorten(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."


def _last(answer: CommandResult) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in (answer.out + "\n" + answer.err).splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _in_brackets(error: BaseException) -> str:
    """Return what an error says, in brackets; nothing of one that says nothing, as a connection's end."""
    said = " ".join(str(error).split())
    return f" ({said})" if said else ""


T = TypeVar("T")
OpenShell = Callable[[DriveEntry, Deadline], AbstractContextManager[Shell]]
CONNECT_SECONDS = 30.0


class DriveConnection:
    """The connection to one drive; may be used from several threads."""

    def __init__(self, drive: DriveEntry, connect: OpenShell = open_shell) -> None:
        """Connect with `connect` when it is first needed."""
        self.drive = drive
        self._connect = connect
        self._open: tuple[Shell, contextlib.ExitStack] | None = None
        self._lock = threading.Lock()
        # (address, port) as seen from here -> the drive's port that leads there.
        self._forwards: dict[tuple[str, int], int] = {}

    def forward(self, host: str, port: int) -> int:
        """Return a port of the drive's loopback that leads to ``host:port`` as seen from here, while it is connected.

        Raises:
            DriveUnfit: its SSH server does not allow it.
            DriveUnreachable: the drive cannot be reached.
        """
        if (host, port) not in self._forwards:
            self._forwards[host, port] = self.use(lambda shell: shell.forward(host, port))
        return self._forwards[host, port]

    def use(self, work: Callable[[Shell], T]) -> T:
        """Return what `work` returns of a shell on the drive; over a connection that broke meanwhile, once again.

        `work` must be such that its beginning may be done twice.

        Raises:
            DriveUnreachable: the drive cannot be reached, or the connection broke twice.
            HostKeyRefused: its host key is not the known one.
        """
        kept = self._open
        opened = self._ensure()
        try:
            return work(opened[0])
        except HostKeyRefused:
            raise
        except DriveUnreachable:
            self._drop(opened)
            if opened is not kept:  # it was new: what broke it will break the next one
                raise
        return work(self._ensure()[0])

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._open is not None:
            self._drop(self._open)

    def _ensure(self) -> tuple[Shell, contextlib.ExitStack]:
        with self._lock:
            if self._open is None:
                stack = contextlib.ExitStack()
                opened = stack.enter_context(self._connect(self.drive, Deadline(CONNECT_SECONDS))), stack
                for (host, port), drive_port in self._forwards.items():
                    with contextlib.suppress(DriveUnfit):  # taken by what is left of the connection that broke
                        opened[0].forward(host, port, drive_port)
                self._open = opened
            return self._open

    def _drop(self, opened: tuple[Shell, contextlib.ExitStack]) -> None:
        with self._lock:
            if self._open is opened:
                self._open = None
        opened[1].close()

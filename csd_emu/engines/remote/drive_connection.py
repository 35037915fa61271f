"""One drive's SSH connection, opened when it is needed, and again when it broke."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from csd_emu.engines.remote.inventory import DriveEntry
from csd_emu.engines.remote.shell import Shell, open_shell
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DriveUnfit, DriveUnreachable, HostKeyRefused

T = TypeVar("T")
OpenShell = Callable[[DriveEntry, Deadline], AbstractContextManager[Shell]]
CONNECT_SECONDS = 30.0


class DriveConnection:
    """The connection to one drive; may be used from several threads."""

    def __init__(self, drive: DriveEntry, connect: OpenShell = open_shell) -> None:
        """Connect with `connect` when it is first needed."""
        self.drive = drive
        self._connect = connect
        self._open: _Open | None = None
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
            return work(opened.shell)
        except HostKeyRefused:
            raise
        except DriveUnreachable:
            self._drop(opened)
            if opened is not kept:  # it was new: what broke it will break the next one
                raise
        return work(self._ensure().shell)

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._open is not None:
            self._drop(self._open)

    def _ensure(self) -> _Open:
        with self._lock:
            if self._open is None:
                opened = _Open(self._connect(self.drive, Deadline(CONNECT_SECONDS)))
                for (host, port), drive_port in self._forwards.items():
                    with contextlib.suppress(DriveUnfit):  # taken by what is left of the connection that broke
                        opened.shell.forward(host, port, drive_port)
                self._open = opened
            return self._open

    def _drop(self, opened: _Open) -> None:
        with self._lock:
            if self._open is opened:
                self._open = None
        opened.close()


class _Open:
    """A shell that is open."""

    def __init__(self, manager: AbstractContextManager[Shell]) -> None:
        self._stack = contextlib.ExitStack()
        self.shell = self._stack.enter_context(manager)

    def close(self) -> None:
        self._stack.close()

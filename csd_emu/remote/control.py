"""The control script of a drive, called over SSH."""

from __future__ import annotations

import msgspec

from csd_emu.deadline import Deadline
from csd_emu.remote.layout import Layout
from csd_emu.remote.shell import Shell


class AgentStatus(msgspec.Struct, frozen=True):
    """What a drive's control script says of its agent.

    Attributes:
        state: ``running``, ``waiting`` (it runs, but nobody has given it an identity), ``stopped`` or ``failed``.
        version: the version in use, "" if none.
        previous: the version that a rollback goes back to, "" if none.
        supervisor: ``systemd``, ``initd`` or ``process``; "" if nothing is installed.
        pid: of the agent, 0 if none.
        array, device: of the identity that it serves, "" if none.
        incarnation: of that identity.
        enrolled: whether the drive has a certificate of its own.
        boot_id: changes with every boot of the drive.
    """

    state: str
    version: str = ""
    previous: str = ""
    supervisor: str = ""
    pid: int = 0
    array: str = ""
    device: str = ""
    incarnation: int = 0
    enrolled: bool = False
    boot_id: str = ""


class Control:
    """Calls of one drive's control script."""

    def __init__(self, shell: Shell, layout: Layout) -> None:
        """Speak through `shell`."""
        self._shell, self._layout = shell, layout

    def status(self, deadline: Deadline) -> AgentStatus:
        """Return what the script says; a drive without it is ``stopped`` and has no version."""
        raise NotImplementedError  # helper "install"

    def do(self, verb: str, deadline: Deadline) -> str:
        """Run a verb of the script: start, stop, restart, clear-slot, "signal KILL"... and return what it wrote."""
        raise NotImplementedError  # helper "install"

"""The control script of a drive, called over SSH."""

from __future__ import annotations

import shlex

import msgspec

from csd_emu.engines.remote.drive_layout import DriveLayout
from csd_emu.engines.remote.shell import Shell
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DriveUnfit


class AgentStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a drive's control script says of its agent.

    Attributes:
        state: ``running``, ``waiting`` (it runs, but nobody has given it an identity), ``stopped`` or ``failed``.
        version: the version in use, "" if none: that which the next start runs.
        previous: the version that a rollback goes back to, "" if none.
        supervisor: ``systemd``, ``initd`` or ``process``; "" if nothing is installed.
        pid: of the agent, 0 if none.
        array, device: of the identity that it serves, "" if none.
        incarnation: of that identity.
        enrolled: whether the drive has a certificate of its own.
        boot_id: changes with every boot of the drive.
        running: the version of the agent that runs, "" if none does.
        what: why it failed, "" if it did not.
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
    running: str = ""
    what: str = ""


class Control:
    """Calls of one drive's control script."""

    def __init__(self, shell: Shell, layout: DriveLayout) -> None:
        """Speak through `shell`."""
        self._shell, self._layout = shell, layout
        self._script = shlex.quote(str(layout.control))

    def status(self, deadline: Deadline) -> AgentStatus:
        """Return what the script says; a drive without it is ``stopped`` and has no version.

        Raises:
            DriveUnfit: the script failed, or says what this csd-emu does not understand.
            DriveUnreachable: the connection broke, or the deadline passed.
        """
        found = self._shell.check(f"if [ -f {self._script} ]; then {self._script} status; fi", deadline, root=True)
        if not found:
            return AgentStatus("stopped")
        try:
            return msgspec.json.decode(found, type=AgentStatus)
        except msgspec.MsgspecError as error:
            drive = self._shell.drive.name
            raise DriveUnfit(
                f"drive {drive}: what its agent says of itself cannot be read ({error}); run csd-emu deploy upgrade"
            ) from error

    def do(self, verb: str, deadline: Deadline) -> str:
        """Run a verb of the script: start, stop, restart, clear-slot, "signal KILL"... and return what it wrote.

        Raises:
            DriveUnfit: the script failed, or there is none; the message is the script's.
            DriveUnreachable: the connection broke, or the deadline passed.
        """
        return self._shell.check(f"{self._script} {verb}", deadline, root=True)

"""The control script and the slot of a drive: what an array lends it, and what it says of itself meanwhile."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from csd_emu.engines.remote.drive_layout import DriveLayout
from csd_emu.engines.remote.shell import Shell
from csd_emu.util.deadline import Deadline
from csd_emu.util.file_hash import file_sha256
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


_LEASE = "lease"
_COMMAND_SECONDS, _START_SECONDS = 60.0, 120.0
# A shard of a large data set over a slow link.
_COPY_SECONDS = 24 * 3600.0
_CONSOLE_LINES = 60
_MARK = "--csd-emu-console--"


class Lease(msgspec.Struct, frozen=True):
    """To whom a drive is lent: array, device in it, the tag of its `up`, and the server that holds the array.

    Arrays of one name on two servers are two.
    """

    array: str
    device: str
    run: str
    server: str

    def is_of(self, array: str, server: str) -> bool:
        """Return whether it is this array's, whatever the `up`."""
        return (self.array, self.server) == (array, server)


class Look(NamedTuple):
    """What a look at a drive shows: its agent, to whom it is lent, and the last that it said there."""

    status: AgentStatus
    lease: Lease | None
    console: str

    @property
    def alive(self) -> bool:
        """Whether its agent serves, or is about to serve, whom it is lent to.

        One that crashed is started again by its supervisor; one that lives and says that it failed will not serve.
        """
        failed = self.status.state == "failed" and self.status.pid > 0
        return self.lease is not None and self.status.state != "stopped" and not failed


class Slot:
    """The slot of one drive, through a shell on it."""

    def __init__(self, shell: Shell, layout: DriveLayout) -> None:
        """Speak through `shell`."""
        self._shell, self._layout = shell, layout
        self._control = Control(shell, layout)
        self._folder = shlex.quote(str(layout.slot))

    def look(self) -> Look:
        """Return what there is.

        Raises:
            DriveUnfit: the drive's control script failed.
            DriveUnreachable: the connection broke.
        """
        status = self._control.status(Deadline(_COMMAND_SECONDS))
        said = self._run(
            f"cat {self._folder}/{_LEASE} 2>/dev/null; echo; echo {_MARK}; "
            f"tail -n {_CONSOLE_LINES} {shlex.quote(str(self._layout.console))} 2>/dev/null; true"
        )
        lease, _, console = said.partition(_MARK)
        return Look(status, _lease(lease), console.lstrip("\n"))

    def lend(
        self, lease: Lease, ticket: Path, shard: Path | None, show: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """Take the drive, give it a ticket, and a shard unless the same one lies there, and have its agent run.

        Args:
            lease: to whom it is lent.
            ticket: the identity archive.
            shard: the shard archive; None if the drive trains on records in place.
            show: is called with the shard's bytes that were copied and all of them.

        Raises:
            DriveUnfit: it is lent to another array, it cannot be written there, or the agent does not start.
            DriveUnreachable: the connection broke.
        """
        self._take(lease)
        self._thaw()
        if shard is not None and self._sha256(str(self._layout.shard)) != (digest := file_sha256(shard)):
            self._send_shard(shard, digest, show)
        else:  # a copy that was cut must not take the place of what is whole
            self._run(f"rm -f {self._folder}/shard.tar.new")
        self._write("identity.tar.new", ticket.read_bytes())
        self._control.do("put-slot", Deadline(_COMMAND_SECONDS))
        self._control.do("start", Deadline(_START_SECONDS))

    def take_back(self, array: str, server: str) -> bool:
        """Take the ticket from the drive if it is lent to `array` of `server`; return whether it was.

        The shard may stay.
        """
        if (look := self.look()).lease is None or not look.lease.is_of(array, server):
            return False
        if look.status.pid:
            self._thaw()
        self._run(f"{self._if_lease(look.lease)} rm -f {self._folder}/identity.tar {self._folder}/{_LEASE}; fi")
        return True

    def _take(self, lease: Lease) -> None:
        """Take the drive for an array, unless another one has it; who is first has it, also of two at one time.

        Raises:
            DriveUnfit: another one has it.
        """
        held, mine = f"{self._folder}/{_LEASE}", f"{self._folder}/.{_LEASE}-{shlex.quote(lease.run)}"
        self._write(f".{_LEASE}-{shlex.quote(lease.run)}", msgspec.json.encode(lease))
        # A link is made whole or not at all, and never over another.
        found = self._run(f"ln {mine} {held} 2>/dev/null; cat {held} 2>/dev/null; true")
        if (before := _lease(found)) is not None and before.is_of(lease.array, lease.server):
            found = self._run(f"{self._if_lease(before)} mv -f {mine} {held}; fi; cat {held}")
        elif before is None:  # it has just been given back, or a power cut left a part of one
            damaged = f'[ -f {held} ] && [ "$(cat {held})" = {shlex.quote(found)} ]'
            found = self._run(
                f"if {damaged}; then mv -f {mine} {held}; else ln {mine} {held} 2>/dev/null; fi; cat {held}"
            )
        self._run(f"rm -f {mine}")
        if (after := _lease(found)) != lease:
            raise lent_to_another(self._shell.drive.name, after)

    def _if_lease(self, lease: Lease) -> str:
        """Return the beginning of an `if`: whether the drive is still lent just so."""
        text = shlex.quote(msgspec.json.encode(lease).decode())
        return f'if [ "$(cat {self._folder}/{_LEASE})" = {text} ]; then'

    def signal(self, name: str) -> None:
        """Send a signal, ``KILL``, ``STOP`` or ``CONT``, to the drive's agent.

        Raises:
            DriveUnfit: it does not run.
        """
        self._control.do(f"signal {name}", Deadline(_COMMAND_SECONDS))

    def _thaw(self) -> None:
        """Let a frozen agent go on, or it would not see what changes."""
        script = shlex.quote(str(self._layout.control))
        self._shell.run(f"{script} signal CONT", Deadline(_COMMAND_SECONDS), root=True)  # none runs: nothing to do

    def _send_shard(self, shard: Path, digest: str, show: Callable[[int, int], None]) -> None:
        target = self._layout.slot / "shard.tar.new"
        for _ in range(2):  # what lies there of another shard's copy that was cut makes the first one wrong
            self._shell.copy(shard, target, Deadline(_COPY_SECONDS), show, root=True)
            if self._sha256(str(target)) == digest:
                return
            self._run(f"rm -f {shlex.quote(str(target))}")
        raise DriveUnfit(
            f"drive {self._shell.drive.name}: {target} is not what was sent; check its disk and its memory, then again"
        )

    def _sha256(self, path: str) -> str:
        place = shlex.quote(path)
        said = self._run(f"if [ -f {place} ]; then sha256sum {place}; fi")
        return said.split()[0] if said.split() else ""

    def _write(self, name: str, content: bytes) -> None:
        self._shell.check(
            f"umask 077; cat > {self._folder}/{name}", Deadline(_COMMAND_SECONDS), stdin=content, root=True
        )

    def _run(self, command: str) -> str:
        return self._shell.check(command, Deadline(_COMMAND_SECONDS), root=True)


def lent_to_another(drive: str, lease: Lease | None) -> DriveUnfit:
    """Return the error that says who has a drive."""
    array, server = (lease.array, lease.server) if lease is not None else ("?", "?")
    return DriveUnfit(
        f"drive {drive}: is lent to array {array!r} of {server}; end that with csd-emu down {array} there, or, if that "
        "machine is no more, run bin/csd-agent clear-slot on the drive"
    )


def _lease(text: str) -> Lease | None:
    try:
        return msgspec.json.decode(text.strip() or "null", type=Lease | None)
    except msgspec.MsgspecError:  # cut while it was written: nobody's
        return None

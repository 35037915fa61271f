"""A drive's shell without a drive: commands run on this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from csd_emu.engines.remote.inventory import DriveEntry
from csd_emu.engines.remote.shell import CommandResult, OnCopied, Shell
from csd_emu.util.deadline import Deadline
from firmware_agent.common.errors import DriveUnreachable


class LocalShell(Shell):
    """Stands in for a drive's shell: runs its commands here, in `sh`."""

    def __init__(
        self,
        drive: DriveEntry,
        environment: Mapping[str, str],
        shell: tuple[str, ...] = ("sh",),
        before: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Run commands as whoever we are; rights of root are not asked for.

        Args:
            drive: whom it stands for.
            environment: all that the commands see of it.
            shell: the program, and its first arguments.
            before: called with every command, and with ``copy PATH``, before it is run; may raise to cut the line.
        """
        self.drive = drive
        self._environment, self._shell, self._before = dict(environment), shell, before

    def run(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> CommandResult:
        """See `Shell.run`."""
        self._before(command)
        try:
            done = subprocess.run(
                [*self._shell, "-c", command],
                input=stdin,
                capture_output=True,
                timeout=max(deadline.left_seconds, 0.001),
                env=self._environment,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise DriveUnreachable(f"drive {self.drive.name}: did not answer before the deadline") from error
        return CommandResult(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    def copy(self, source: Path, target: PurePosixPath, deadline: Deadline, show: OnCopied, root: bool = False) -> None:
        """See `Shell.copy`."""
        self._before(f"copy {target}")
        whole = source.stat().st_size
        with open(source, "rb") as sent, open(target, "ab") as there:
            sent.seek(there.tell())
            shutil.copyfileobj(sent, there)
        show(whole, whole)

    def forward(self, host: str, port: int, drive_port: int = 0) -> int:
        """Return the port itself: here is there."""
        return port

    def close(self) -> None:
        """Do nothing: there is no connection."""

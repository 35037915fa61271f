"""A board over SSH: its facts, a temporary folder with programs on it, and runs of them on one of its cores."""

from __future__ import annotations

import io
import logging
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from csd_emu.engines.remote.inventory import HOP, DriveEntry, Inventory
from csd_emu.engines.remote.shell import OpenShell, open_shell
from csd_emu.util.config_files import parse_config
from csd_emu.util.deadline import Deadline
from csd_lab.fidelity.benchmark_programs import guest_file
from csd_lab.fidelity.board_facts import BoardFacts, clean_text, parse_facts
from csd_lab.fidelity.board_runs import BoardSample, Repetition, parse_run
from firmware_agent.common.errors import ConfigurationError, CsdError, DriveUnfit, DriveUnreachable
from host.core.interrupts import INTERRUPTS

log = logging.getLogger(__name__)
_CONNECT_SECONDS, _FACTS_SECONDS, _UPLOAD_SECONDS, _CLEAN_SECONDS = 60.0, 180.0, 1800.0, 30.0
# A command's end, and what it wrote, come so much after its repetitions at most.
_SLACK_SECONDS = 60.0
# Of `mktemp`; the folder is removed whole in the end, so it must be one of ours.
_FOLDER = re.compile(r"(/(?!\.\.?/)[A-Za-z0-9._+-]+)*/csd-fidelity\.[A-Za-z0-9]{6,12}")
_RUN = "board_run.sh"
_MAKE_FOLDER = 'cd "${TMPDIR:-/tmp}" && mktemp -d "$PWD/csd-fidelity.XXXXXXXX"'


def find_board(target: str, ssh_config: Path | None = None) -> DriveEntry:
    """Return how to reach a board; keys, host keys and jump hosts are OpenSSH's own.

    Args:
        target: ``user@board[:port]``, or a name of OpenSSH's configuration.
        ssh_config: that configuration's file; None for the user's and the system's.

    Raises:
        ConfigurationError: `target` is none, or there is no such file.
    """
    if (found := HOP.match(target)) is None:
        raise ConfigurationError(f"--on: {target!r} is no board; write user@board or user@board:22")
    if ssh_config is not None and not ssh_config.is_file():
        raise ConfigurationError(
            f"--ssh-config: {ssh_config} is no file; name OpenSSH's configuration, or leave it out"
        )
    section = {
        "host": found["six"] or found["host"],
        "user": found["user"],
        "port": found["port"] and int(found["port"]),
        "ssh_config": ssh_config and str(ssh_config.absolute()),
    }
    return parse_config({"name": "boards", "drives": {"board": section}}, Inventory, "--on").list_drives()[0]


class BoardSession:
    """A connection to a board, and a fresh folder there that is removed at the end, whatever happens.

    Attributes:
        where: names the board in errors.
        facts: what it is.
    """

    facts: BoardFacts

    def __init__(self, board: DriveEntry, connect: OpenShell = open_shell) -> None:
        """Speak with `board` through `connect`, inside a `with` block.

        Raises, as the block begins:
            DriveUnreachable: nobody answers, the login was refused, or the host key is not the known one.
            DriveUnfit: it is no board that csd-emu's programs run on.
        """
        self.where = f"board {board.host}"
        self._board, self._connect, self._folder = board, connect, ""

    def __enter__(self) -> BoardSession:
        self._opened = self._connect(self._board, Deadline(_CONNECT_SECONDS))
        self._shell = self._opened.__enter__()
        try:
            answer = self._shell.run("/bin/sh -s", Deadline(_FACTS_SECONDS), guest_file("board_facts.sh"))
            self.facts = parse_facts(self.where, answer.out)
            with INTERRUPTS.deferred():
                self._folder = self._make_folder()
            self.upload({_RUN: guest_file(_RUN)})
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with INTERRUPTS.deferred():
            try:
                if self._folder:
                    self._remove_folder()
            finally:
                self._opened.__exit__(kind, error, trace)

    def upload(self, files: Mapping[str, bytes]) -> None:
        """Put files, which may be run, into the folder.

        Args:
            files: relative path -> content.

        Raises:
            DriveUnfit: they cannot be written there.
            DriveUnreachable: the connection broke, or it took too long.
        """
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(content), 0o700
                archive.addfile(member, io.BytesIO(content))
        # tar would take the owner from the archive if it is root's.
        self._run(f"cd {self._folder} && tar -xof -", _UPLOAD_SECONDS, packed.getvalue())

    def run(self, name: str, command: str, repetitions: int, seconds: float) -> list[Repetition]:
        """Run a command on one Cortex-A53, again and again.

        Args:
            name: of the program, in errors.
            command: of a shell; its folder is that of the files.
            repetitions: how often.
            seconds: that each may take.

        Raises:
            DriveUnfit: it failed.
            DriveUnreachable: the connection broke, or it took too long.
        """
        line = f"cd {self._folder} && exec /bin/sh {_RUN} {self.facts.core} {repetitions} {seconds:.0f} {command}"
        answer = self._shell.run(line, Deadline(repetitions * (seconds + 2) + _SLACK_SECONDS))
        return parse_run(f"{self.where}: {name}", answer.out, repetitions)

    def sample(self) -> BoardSample:
        """Return clock and temperature now.

        Raises:
            DriveUnreachable: the connection broke.
        """
        repetitions = self.run("true", "true", 1, 10)
        return repetitions[0].samples[0] if repetitions[0].samples else BoardSample("before")

    def _make_folder(self) -> str:
        folder = (self._run(_MAKE_FOLDER, _CLEAN_SECONDS).split() or [""])[-1]  # a shell's greeting comes before
        if not _FOLDER.fullmatch(folder):
            raise DriveUnfit(
                f"{self.where}: mktemp made {clean_text(folder)!r}, which is no folder of csd-emu's; see it"
            )
        return folder

    def _remove_folder(self) -> None:
        """End what still runs in the folder, and remove it; over another connection if this one broke."""
        line = f"[ ! -f {self._folder}/pid ] || kill $(cat {self._folder}/pid); rm -rf {self._folder}"
        try:
            try:
                self._run(line, _CLEAN_SECONDS)
            except DriveUnreachable:
                with self._connect(self._board, Deadline(_CLEAN_SECONDS)) as shell:
                    shell.check(line, Deadline(_CLEAN_SECONDS))
        except CsdError as error:
            log.warning("%s: %s is left there (%s); remove it", self.where, self._folder, error)

    def _run(self, command: str, seconds: float, stdin: bytes = b"") -> str:
        return self._shell.check(command, Deadline(seconds), stdin)

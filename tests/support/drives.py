"""Drives for tests of `csd-emu deploy`: shells without a connection, and real OpenSSH servers on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from csd_emu.engines.remote.inventory import DriveEntry, Inventory
from csd_emu.engines.remote.shell import CommandResult, OnCopied
from csd_emu.util.deadline import Deadline

SSHD = Path(shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "/usr/sbin/sshd")
LOOPBACK = "127.0.0.1"
START_SECONDS = 30.0


class FakeShell:
    """A `csd_emu.engines.remote.shell.Shell` whose answers are given."""

    def __init__(self, drive: DriveEntry, answer: Callable[[str], CommandResult]) -> None:
        self.drive = drive
        self.closed = threading.Event()
        self._answer = answer

    def run(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> CommandResult:
        return self._answer(command)

    def check(self, command: str, deadline: Deadline, stdin: bytes = b"", root: bool = False) -> str:
        return self.run(command, deadline, stdin, root).out.rstrip()

    def copy(self, source: Path, target: PurePosixPath, deadline: Deadline, show: OnCopied, root: bool = False) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed.set()


def entries(count: int) -> list[DriveEntry]:
    """Return drives of an inventory that nobody answers for."""
    names = [f"csd-{number:02d}" for number in range(count)]
    return Inventory.model_validate({"name": "lab", "drives": {name: {} for name in names}}).list_drives()


class Sshd:
    """An OpenSSH server on loopback, run as this process's user, who alone can log in.

    Attributes:
        folder: of its keys and files.
        port: that it listens on.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        """Make its host key; `options` are lines of its configuration."""
        self.folder = folder
        folder.mkdir()
        make_key(folder / "host")
        with socket.create_server((LOOPBACK, 0)) as listener:
            self.port: int = listener.getsockname()[1]
        lines = [
            f"ListenAddress {LOOPBACK}:{self.port}",
            f"HostKey {folder}/host",
            f"AuthorizedKeysFile {folder}/authorized",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PidFile none",
            *options,
        ]
        (folder / "config").write_text("\n".join(lines) + "\n")
        (folder / "authorized").write_text("")

    @contextlib.contextmanager
    def running(self) -> Iterator[Sshd]:
        """Serve while the block runs."""
        if os.geteuid() == 0:  # then it wants an empty folder to shut itself in
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "config"], stderr=log)
        try:
            self._wait_for_banner(process)
            yield self
        finally:
            process.terminate()
            process.wait()

    def let_in(self, key: Path) -> None:
        """Accept a key."""
        with (self.folder / "authorized").open("a") as file:
            file.write(Path(f"{key}.pub").read_text())

    def known_line(self, key: str = "host", name: str | None = None) -> str:
        """Return a line of known_hosts that knows this server by one of its folder's keys."""
        kind, blob = (self.folder / f"{key}.pub").read_text().split()[:2]
        return f"{name or f'[{LOOPBACK}]:{self.port}'} {kind} {blob}\n"

    def _wait_for_banner(self, process: subprocess.Popen[bytes]) -> None:
        deadline = Deadline(START_SECONDS)
        while True:
            try:
                with socket.create_connection((LOOPBACK, self.port), deadline.left_seconds) as connection:
                    assert connection.recv(4) == b"SSH-"
                    return
            except ConnectionRefusedError:
                log = (self.folder / "log").read_text()
                assert process.poll() is None, f"sshd ended: {log}"
                assert not deadline.expired, f"sshd does not listen: {log}"


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    """Make a key pair and return the private half's path."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", path], check=True)
    return path

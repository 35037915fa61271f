"""Real drives on this machine: OpenSSH's own server on loopback, and agents that are installed beside each other."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from csd_emu.engines.remote.drive_layout import DriveLayout
from tests import ROOT
from tests.support.drives import LOOPBACK, SSHD, Sshd, make_key

_VERSION = "0" * 16
needs_sshd = pytest.mark.skipif(
    not SSHD.exists() or shutil.which("ssh-keygen") is None or os.getuid() != 0,
    reason="needs OpenSSH's server, and root, as whom a drive's control script runs",
)


class Loopback:
    """An SSH server on loopback, and the files to reach it with."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def install(self, name: str) -> Path:
        """Lay out an installed agent for a drive, as `csd-emu deploy install` leaves it; return its folder."""
        layout = DriveLayout(self.folder / "drives" / name)  # type: ignore[arg-type]
        folder = Path(layout.folder)
        version = folder / "versions" / _VERSION
        for path in (version / "agent", version / "bin", *(folder / part for part in ("bin", "log", "slot", "state"))):
            path.mkdir(parents=True)
        (folder / "enrolment").mkdir()
        (version / "version.json").write_text(f'{{\n  "id": "{_VERSION}",\n  "form": "wheels"\n}}\n')
        (version / "python").symlink_to(Path(sys.executable).resolve())
        (version / "site").symlink_to(sysconfig.get_path("purelib"))
        (version / "agent" / "firmware_agent").symlink_to(ROOT / "firmware_agent")
        shutil.copy(ROOT / "images" / "drive" / "csd-agent", version / "bin" / "csd-agent")
        (version / "bin" / "csd-agent").chmod(0o755)
        (folder / "current").symlink_to(f"versions/{_VERSION}")
        (folder / "bin" / "csd-agent").symlink_to("../current/bin/csd-agent")
        (folder / "config").write_text(f"user={getpass.getuser()}\ndata=\n")
        (folder / ".csd-emu").touch()
        return folder

    def agent_of(self, name: str) -> psutil.Process:
        """Return the agent that runs on a drive."""
        folder = str(self.folder / "drives" / name)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[-2:] == ["deployed", folder]:
                    return process
        raise LookupError(f"no agent runs in {folder}")

    def uninstall(self, folder: Path) -> None:
        """End the agent of a drive."""
        subprocess.run([folder / "bin" / "csd-agent", "stop"], capture_output=True, check=False)

    def inventory(self, drives: Sequence[str], prefix: str = "", **more: str) -> Path:
        """Install drives of these names, and write an inventory of them; `prefix` tells them from others' of a name."""
        lines = [f"name: loop{prefix}", "defaults:", "  host_address: 127.0.0.1", f"  user: {getpass.getuser()}"]
        lines += [f"  port: {self.port}", f"  key: {self.folder}/key", f"  known_hosts: {self.folder}/known_hosts"]
        lines += [f"  ssh_config: {self.folder}/ssh_config"]
        lines += [f"  {key}: {value}" for key, value in more.items()]
        lines.append("drives:")
        for name in drives:
            folder = self.install(f"{prefix}{name}")
            lines.append(f"  {name}: {{host: {name}.loop, folder: {folder}}}")
        path = self.folder / f"drives{prefix}.yaml"
        path.write_text("\n".join(lines) + "\n")
        return path


@contextlib.contextmanager
def loopback(folder: Path) -> Iterator[Loopback]:
    """Run an SSH server; agents that were started on its drives have ended at the end."""
    (folder / "drives").mkdir()
    server = Sshd(
        folder / "sshd",
        # The drives are folders of this machine, whose own services are not theirs.
        f"SetEnv CSD_SYSTEM_ROOT={folder}/system",
        *("PermitRootLogin yes", "MaxStartups 100", "MaxSessions 100", "LogLevel ERROR"),
    )
    server.let_in(make_key(folder / "key"))
    # Drives that share a machine are an error, so each has a name of its own.
    (folder / "ssh_config").write_text(f"Host *.loop\n  HostName {LOOPBACK}\n  HostKeyAlias loop\n")
    (folder / "known_hosts").write_text(server.known_line(name="loop"))
    loop = Loopback(folder, server.port)
    with server.running():
        try:
            yield loop
        finally:
            for drive in (folder / "drives").iterdir():
                loop.uninstall(drive)

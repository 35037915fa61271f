"""Hypervisors for tests: libvirt daemons on this machine, each with socket, home and folder for files of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libvirt
import psutil
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from csd_emu.engines.qemu.libvirt_daemon import SERVICE_USER
from csd_lab.testkit.prometheus import LOOPBACK, free_port
from host.fleet.certificates import Authority
from tests.support.commands import wait_until

_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
DAEMON = shutil.which("libvirtd", path=_PATH)
# Where libvirt looks for its drivers, if not where the distribution puts them.
_DRIVER_FOLDERS = ("LIBVIRT_DRIVER_DIR", "LIBVIRT_STORAGE_BACKEND_DIR")
_START_SECONDS = 30.0
_DRIVERS = [Path(os.environ["LIBVIRT_DRIVER_DIR"])] if "LIBVIRT_DRIVER_DIR" in os.environ else []
_DRIVERS += [path for folder in ("/usr/lib", "/usr/lib64") for path in Path(folder).glob("*/libvirt/connection-driver")]
needs_storage = pytest.mark.skipif(
    DAEMON is None or not any((folder / "libvirt_driver_storage.so").exists() for folder in _DRIVERS),
    reason="needs libvirtd with its storage driver (Debian: libvirt-daemon-driver-storage)",
)


class Hypervisor:
    """A libvirt daemon that stands in for one on another machine.

    Attributes:
        folder: of all its files.
        pool: where csd-emu's files go.
    """

    def __init__(self, folder: Path, pool: Path | None = None) -> None:
        """Make its folders; nothing runs yet."""
        self.folder, self.pool = folder, pool or folder / "pool"
        self._owner = pwd.getpwnam(SERVICE_USER) if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments: list[str] = []
        configuration = folder / "config" / "libvirt"
        for path in (folder / "run", configuration):
            path.mkdir(parents=True)
        (configuration / "qemu.conf").write_text('stdio_handler = "file"\n')
        for path in (folder, *folder.rglob("*")):
            if self._owner is not None:
                os.chown(path, self._owner.pw_uid, self._owner.pw_gid)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "run" / "libvirt" / "libvirt-sock"

    @property
    def uri(self) -> str:
        """libvirt's address of it."""
        return f"qemu+unix:///session?socket={self.socket}"

    def entry(self, name: str, **more: Any) -> dict[str, Any]:
        """Return it as an entry of `hypervisors:`."""
        return {"uri": self.uri, "name": name, "pool_path": str(self.pool)} | more

    def listen(self, authority: Authority) -> int:
        """Have the daemon also take TLS on loopback, from its next start on; return the port."""
        port, folder = free_port(), self.folder / "config"
        server = authority._issue("localhost", ExtendedKeyUsageOID.SERVER_AUTH)
        files = {"ca_file": authority.ca_pem, "cert_file": server.certificate_pem, "key_file": server.key_pem}
        settings = ["listen_tls = 1", f'tls_port = "{port}"', f'listen_addr = "{LOOPBACK}"']
        for name, text in files.items():
            (folder / f"{name}.pem").write_text(text)
            settings.append(f'{name} = "{folder / name}.pem"')
        (folder / "libvirt" / "libvirtd.conf").write_text("\n".join(settings))
        self._arguments = ["--listen"]
        return port

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        environment = {"PATH": _PATH, "HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder / "run")}
        environment |= {"XDG_CONFIG_HOME": str(self.folder / "config")}
        environment |= {name: os.environ[name] for name in _DRIVER_FOLDERS if name in os.environ}
        with open(self.folder.parent / f"{self.folder.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                [DAEMON or "libvirtd", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
                cwd="/",
                user=self._owner.pw_uid if self._owner else None,
                group=self._owner.pw_gid if self._owner else None,
                extra_groups=[] if self._owner else None,
                umask=0o022,
            )
        wait_until(self.answers, _START_SECONDS)

    def answers(self) -> bool:
        """Whether the daemon does."""
        try:
            libvirt.open(self.uri).close()
        except libvirt.libvirtError:
            return False
        return True

    @property
    def process(self) -> psutil.Process:
        """The daemon."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def machines(self) -> list[psutil.Process]:
        """The virtual machines that it has started."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("qemu-system") and str(self.pool) in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def files(self, prefix: str = "") -> list[str]:
        """The names of files in its pool."""
        return sorted(path.name for path in self.pool.glob(f"{prefix}*")) if self.pool.is_dir() else []

    def kill(self) -> None:
        """End the daemon and its machines at once, as when a machine loses its power."""
        for process in [self.process, *self.machines()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._wait()

    def kill_daemon(self) -> None:
        """End the daemon alone, at once."""
        self.process.send_signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """End everything that still runs."""
        for process in self.machines():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._wait()

    def _wait(self) -> None:
        if self._process is not None:
            self._process.wait(timeout=_START_SECONDS)


@contextlib.contextmanager
def hypervisors(count: int, pools: str | None = None) -> Iterator[list[Hypervisor]]:
    """Run so many daemons; nothing of them is left at the end but the files in `pools`, a folder, if it is given.

    Their own folder is short: a socket's path holds 107 bytes.
    """
    folder = Path(tempfile.mkdtemp(prefix="csd-h-", dir="/tmp"))
    folder.chmod(0o755)
    made = []
    try:
        for number in range(count):
            (folder / str(number)).mkdir()
            made.append(Hypervisor(folder / str(number), Path(pools) / str(number) if pools else None))
            made[-1].start()
        yield made
    finally:
        for each in made:
            each.stop()
        shutil.rmtree(folder)

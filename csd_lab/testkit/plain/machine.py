"""One plain machine: a QEMU of its own, its SSH port forwarded to a port of the loopback.

Its clock is the wall's: no instruction is counted, and all of its cores run at once.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from csd_emu.engines.engine_protocol import last_words
from csd_emu.image.initramfs import KeyPair
from csd_emu.util.deadline import Deadline
from csd_emu.util.qemu_tools import find_qemu, make_overlay, sandbox
from csd_lab.testkit.plain.machine_images import DISK, HOST_KEY, INITRD, KERNEL, LOGIN_KEY, PlainImage, host_key_file
from firmware_agent.common.errors import BootTimeout, DeviceError

_MONITOR_POLL_SECONDS = 0.02


class Qmp:
    """Commands to one QEMU, one after the other."""

    def __init__(self, path: Path, deadline: Deadline) -> None:
        """Connect to the socket `path` as soon as QEMU listens there.

        Raises:
            DeviceError: it does not before the deadline.
        """
        self._name = path.parent.name
        self._socket = _connect(path, deadline)
        self._socket.settimeout(deadline.seconds)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run one command and return what it returns.

        Raises:
            DeviceError: QEMU refused it, or has ended.
        """
        request = {"execute": command, "arguments": arguments}
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            while line := self._lines.readline():
                answer = json.loads(line)
                if "error" in answer:
                    raise DeviceError(f"{self._name}: QEMU's {command} failed: {answer['error'].get('desc')}")
                if "return" in answer:
                    return answer["return"]
        except OSError as error:
            raise DeviceError(f"{self._name}: QEMU's monitor is lost ({error}); start the machine again") from error
        raise DeviceError(f"{self._name}: QEMU ended during {command}; start the machine again")

    def close(self) -> None:
        """End the connection."""
        self._lines.close()
        self._socket.close()


def _connect(path: Path, deadline: Deadline) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
            return connection
        except OSError as error:
            connection.close()
            if deadline.expired:
                raise DeviceError(f"{path.parent.name}: QEMU's monitor does not answer ({error})") from error
        time.sleep(_MONITOR_POLL_SECONDS)


MEMORY_BYTES = 1536 << 20
CORES = 2
BOOT_SECONDS = 600.0
_ANSWER_SECONDS = 60.0
_POLL_SECONDS = 0.25
_LOOPBACK = "127.0.0.1"
_PROCESSORS = {"arm64": "cortex-a53", "armhf": "cortex-a15"}
_COMMAND_LINE = "root=/dev/vda rw console=ttyAMA0 net.ifnames=0 quiet loglevel=3 panic=-1 systemd.show_status=false"
_FORWARDED = re.compile(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)")


@dataclass(frozen=True)
class CommandOutput:
    """How a command on a machine ended, and its standard output and error."""

    code: int
    output: str
    errors: str


class PlainMachine:
    """A machine that runs; a context manager that ends it.

    Attributes:
        name: given at the start.
        image: what it boots.
        folder: its disk, keys, console and monitor; goes with it.
        address, port: where its SSH server is reached from this machine.
        known_hosts: an OpenSSH file that holds the key by which it shows itself.
        key: the private key that lets in.
    """

    address = _LOOPBACK

    def __init__(self, image: PlainImage, name: str, folder: Path, process: subprocess.Popen[bytes], qmp: Qmp) -> None:
        """Take over a QEMU that runs; see `start`."""
        self.name, self.image, self.folder = name, image, folder
        self.process, self.qmp = process, qmp
        self.port = _forwarded_port(qmp, name)
        self.key, self.known_hosts = folder / "login_key", folder / "known_hosts"
        shutil.copyfile(image.folder / LOGIN_KEY, self.key)
        self.key.chmod(0o600)
        self.trust((image.folder / HOST_KEY).read_text(encoding="utf-8"))

    @classmethod
    def start(
        cls,
        image: PlainImage,
        name: str,
        runtime: Path,
        *,
        disk: Path | None = None,
        arguments: Sequence[str] = (),
        isolated: bool = True,
    ) -> Self:
        """Start a machine on a disk of its own above the image's; it boots while this returns.

        Args:
            image: what to boot.
            name: for messages and folders.
            runtime: a folder with a short path; a temporary one for this machine is made in it.
            disk: a qcow2 file to copy instead of starting from the image's disk.
            arguments: more for QEMU.
            isolated: it reaches nothing, and is reached by SSH alone; else this machine's loopback and networks too.

        Raises:
            EnvironmentUnfit: QEMU is missing, or there is no space.
            DeviceError: QEMU ended at once.
        """
        runtime.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=runtime, prefix=f"{name}-"))
        try:
            overlay = folder / "disk.qcow2"
            if disk is None:
                make_overlay(find_qemu(), overlay, image.folder / DISK, "raw")
            else:
                shutil.copyfile(disk, overlay)
            command = _command(image, folder, arguments, isolated)
            with (folder / "qemu.log").open("wb") as said:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        except BaseException:
            shutil.rmtree(folder)
            raise
        try:
            return cls(image, name, folder, process, Qmp(folder / "qmp", Deadline(_ANSWER_SECONDS)))
        except BaseException as error:
            process.kill()
            process.wait()
            last = (folder / "qemu.log").read_text(errors="replace").strip()
            shutil.rmtree(folder)
            if isinstance(error, DeviceError) and last:
                raise DeviceError(f"{name}: QEMU did not start: {last}") from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut the power and remove the machine's folder."""
        self.qmp.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def inventory_entry(self, user: str = "root") -> dict[str, str | int]:
        """Return the keys of a drive in an inventory, as `csd_emu.engines.remote.inventory.DriveSection` has them."""
        return {
            "host": self.address,
            "port": self.port,
            "user": user,
            "key": str(self.key),
            "known_hosts": str(self.known_hosts),
            "ssh_config": "none",
            "host_address": "ssh",  # it dials nobody
        }

    def trust(self, host_key: str) -> None:
        """Write `host_key`, a public key in OpenSSH's format, into `known_hosts`."""
        kind, key, *_ = host_key.split()
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {kind} {key}\n", encoding="utf-8")

    def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        user: str = "root",
        timeout_seconds: float = 120.0,
        check: bool = True,
    ) -> CommandOutput:
        """Run a command of the machine's shell over SSH, by this machine's own client.

        Raises:
            DeviceError: with `check`, it failed; or it did not end in time.
        """
        try:
            done = subprocess.run(
                [*self._ssh(user), command], input=stdin, capture_output=True, check=False, timeout=timeout_seconds
            )
        except subprocess.TimeoutExpired as error:
            raise DeviceError(f"{self.name}: {command!r} did not end within {timeout_seconds:.0f} s") from error
        said = CommandOutput(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        if check and said.code:
            raise DeviceError(f"{self.name}: {command!r} ended with {said.code}: {said.errors.strip() or said.output}")
        return said

    def wait_ready(self, deadline: Deadline | None = None) -> None:
        """Wait until its SSH server lets us in.

        Raises:
            BootTimeout: it did not before the deadline; shows the console's end.
        """
        deadline = deadline or Deadline(BOOT_SECONDS)
        while self.process.poll() is None and not deadline.expired:
            with contextlib.suppress(DeviceError):
                if self.run("true", check=False, timeout_seconds=30.0).code == 0:
                    return
            time.sleep(_POLL_SECONDS)
        console = last_words(self.folder / "console.log")
        raise BootTimeout(f"{self.name}: no SSH server lets us in; the console's last lines:\n{console}")

    def settle(self) -> None:
        """Give it the right date, entropy, and a host key that no other machine has."""
        pair = KeyPair.make()
        recipe, path = self.image.recipe, f"/{self.image.host_key_path}"
        # Dropbear reads its key anew for every connection.
        renew = "true" if recipe.ssh_server == "dropbear" else "kill -HUP $(pgrep -o -x sshd)"
        self.run(
            f"cat >{path} && date -s @{time.time():.0f} >/dev/null && {renew}",
            stdin=host_key_file(self.image.recipe, pair),
        )
        self.trust(pair.public.decode())
        self.wait_ready()

    def reboot(self, *, by_force: bool = False) -> None:
        """Start it anew, in an orderly way or, with `by_force`, as after a loss of power; wait until it is back.

        Raises:
            BootTimeout: it did not come back.
        """
        before = self.boot_id()
        if by_force:
            self.qmp.execute("system_reset")
        else:
            self.run("reboot", check=False)
        deadline = Deadline(BOOT_SECONDS)
        while True:
            self.wait_ready(deadline)
            with contextlib.suppress(DeviceError):
                if self.boot_id() != before:
                    return
            time.sleep(_POLL_SECONDS)

    def boot_id(self) -> str:
        """Return what differs between two boots."""
        return self.run("cat /proc/sys/kernel/random/boot_id").output.strip()

    def set_clock(self, epoch_seconds: float) -> None:
        """Set its date."""
        self.run(f"date -s @{epoch_seconds:.0f}")

    def set_link(self, up: bool) -> None:
        """Plug its network cable in or out: what is sent meanwhile is lost, and no connection is closed."""
        self.qmp.execute("set_link", name="card", up=up)

    def fill_disk(self, free_bytes: int) -> None:
        """Fill its root file system until `free_bytes` are left; `/filler` is the file to remove."""
        kilobytes = int(self.run("df -Pk / | tail -n 1").output.split()[3])
        taken = kilobytes * 1024 - free_bytes
        if taken > 0:
            self.run(f"fallocate -l {taken} /filler")

    def _ssh(self, user: str) -> list[str]:
        options = (
            *(
                "BatchMode=yes",
                "StrictHostKeyChecking=yes",
                "IdentitiesOnly=yes",
                "ConnectTimeout=20",
                "LogLevel=ERROR",
            ),
            *(f"UserKnownHostsFile={self.known_hosts}", "GlobalKnownHostsFile=/dev/null", f"IdentityFile={self.key}"),
        )
        return ["ssh", "-F", "none", "-p", str(self.port), *(f"-o{word}" for word in options), f"{user}@{self.address}"]


def _forwarded_port(qmp: Qmp, name: str) -> int:
    shown = qmp.execute("human-monitor-command", **{"command-line": "info usernet"})
    found = _FORWARDED.search(shown)
    if found is None:
        raise DeviceError(f"{name}: QEMU forwards no port: {shown}")
    return int(found[1])


def _command(image: PlainImage, folder: Path, more: Sequence[str], isolated: bool) -> list[str]:
    tools = find_qemu()
    # Should this process be killed, the kernel ends the machine too.
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    processor = _PROCESSORS[image.recipe.architecture]
    # No address of this machine is reached from a 32-bit machine above 4 GiB.
    restrict = "on" if isolated else "off"
    machine = f"{tools.machine},gic-version=2" + ("" if processor == "cortex-a53" else ",highmem=off")
    return [
        *(*guard, tools.emulator, "-machine", machine, "-cpu", processor, "-m", str(MEMORY_BYTES >> 20)),
        *("-smp", str(CORES), "-accel", "tcg,thread=multi", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-serial", f"file:{folder / 'console.log'}", "-qmp", f"unix:{folder / 'qmp'},server=on,wait=off"),
        *("-drive", f"if=none,id=root,format=qcow2,file={folder / 'disk.qcow2'},cache=unsafe"),
        *("-device", "virtio-blk-pci,drive=root", "-device", "virtio-rng-pci"),
        *("-netdev", f"user,id=net,restrict={restrict},hostfwd=tcp:{_LOOPBACK}:0-:22"),
        *("-device", "virtio-net-pci,id=card,netdev=net", *sandbox(tools.emulator)),
        *(
            "-kernel",
            str(image.folder / KERNEL),
            "-initrd",
            str(image.folder / INITRD),
            "-append",
            _COMMAND_LINE,
            *more,
        ),
    ]

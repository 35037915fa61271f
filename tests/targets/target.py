"""One drive for tests of `csd-emu deploy`: a plain machine behind a proxy, and an inventory that names it."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from csd_emu.engines.remote.drive_layout import AGENT_USER, DEFAULT_FOLDER
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_emu.util.qemu_tools import find_qemu
from csd_lab.testkit.plain import PlainImages, PlainMachine
from firmware_agent.common.errors import EnvironmentUnfit
from tests.support.commands import wait_until
from tests.support.machines import REQUIRE_VARIABLE
from tests.targets.proxy import TcpProxy

FOLDER = DEFAULT_FOLDER
# What changes by itself on a machine that runs, or because somebody logs in.
_LIVE = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/var/log", "/var/lib/systemd", "/var/cache/ldconfig")

# A lock and backups that useradd and userdel make for themselves, and that a machine has once it has used them.
_ACCOUNT_FILES = {"/etc/.pwd.lock", *(f"/etc/{name}-" for name in ("passwd", "group", "shadow", "gshadow", "subuid"))}
_ACCOUNT_FILES |= {"/etc/subgid-"}


class Target:
    """A drive.

    Attributes:
        machine: the plain machine.
        proxy: in front of its SSH port.
        known_hosts: what the inventory names; tests may change it.
    """

    def __init__(self, machine: PlainMachine, folder: Path) -> None:
        self.machine = machine
        self.proxy = TcpProxy(machine.port)
        self.folder = folder
        self.known_hosts = folder / f"{machine.name}.hosts"
        self.trust()

    @property
    def name(self) -> str:
        return self.machine.name

    def trust(self, key: str | None = None) -> None:
        """Have the inventory's known_hosts hold the machine's host key, or another one."""
        kind, own = self.machine.known_hosts.read_text().split()[1:3]
        line = key or f"{kind} {own}"
        hosts = [f"[127.0.0.1]:{port} {line}\n" for port in (self.machine.port, self.proxy.port)]
        self.known_hosts.write_text("".join(hosts))

    def inventory_entry(self, **changes: Any) -> dict[str, Any]:
        """The drive's section of an inventory."""
        entry = self.machine.inventory_entry() | {"port": self.proxy.port, "known_hosts": str(self.known_hosts)}
        return entry | changes

    def inventory(self, **changes: Any) -> Path:
        """Write an inventory of this drive alone."""
        return write_inventory(self.folder, {self.name: self.inventory_entry(**changes)})

    def says(self, command: str) -> str:
        """What a command of root's writes."""
        return self.machine.run(command).output

    def listing(self, *below: str) -> list[str]:
        """Names of all files and folders that stay, and users and groups."""
        places = " -o ".join(f"-path {place}" for place in _LIVE)
        found = self.says(f"find {' '.join(below) or '/'} -xdev \\( {places} \\) -prune -o -print | sort")
        return [path for path in found.splitlines() if path not in _ACCOUNT_FILES]

    def inodes(self, folder: str = FOLDER) -> list[str]:
        """Inode, size, date of change and name of every file below a folder; the agent's own state is left out."""
        skip = f"-path {folder}/log -o -path {folder}/state"
        return self.says(
            f"find {folder} \\( {skip} \\) -prune -o -print | sort | "
            'while IFS= read -r path; do stat -c "%i %s %Y %Z %n" "$path"; done'
        ).splitlines()

    def accounts(self) -> str:
        """Users and groups."""
        return self.says("cat /etc/passwd /etc/group")

    def agents(self) -> list[str]:
        """Command lines of processes of ours that run there."""
        command = (
            "for one in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$one 2>/dev/null; echo; done | "
            "grep -e 'firmware_agent [d]eployed' -e 'csd-agent.* [s]upervise'"
        )
        return self.machine.run(command, check=False).output.splitlines()

    def wait_for(self, holds: Callable[[], bool], seconds: float = 120.0) -> None:
        """Wait until something holds on the drive."""
        wait_until(holds, seconds)

    def assert_unprivileged(self) -> None:
        """The agent runs as its own user, and steps back for the drive's other work."""
        own = self.says(f"id -u {AGENT_USER}").strip()
        ours = "tr '\\0' ' ' <$one/cmdline 2>/dev/null | grep -q 'firmware_agent [d]eployed'"
        tell = "grep '^Uid:' $one/status && cat $one/oom_score_adj"
        found = self.says(f"for one in /proc/[0-9]*; do {ours} && {tell}; done; true").split()
        assert found[:2] == ["Uid:", own], found
        assert int(found[-1]) == 500

    def mounts(self, folder: str = FOLDER) -> list[str]:
        """What is mounted below a folder, for all that log in."""
        return [line for line in self.says("cat /proc/mounts").splitlines() if f" {folder}/" in line]

    def has_user(self) -> bool:
        return AGENT_USER in self.accounts()

    def close(self) -> None:
        self.proxy.close()
        self.machine.close()


def write_inventory(folder: Path, drives: dict[str, dict[str, Any]], **more: Any) -> Path:
    """Write an inventory of these drives."""
    path = folder / "inventory.yaml"
    path.write_text(yaml.safe_dump({"name": "targets", "drives": drives} | more))
    return path


@contextlib.contextmanager
def target(kind: str, name: str = "", isolated: bool = True) -> Iterator[Target]:
    """Start a plain machine of this kind and wait until it lets us in; skip where there is no QEMU."""
    try:
        image = PlainImages(Paths.default().cache).ensure(kind, Silent())
        find_qemu()
    except EnvironmentUnfit as error:
        if os.environ.get(REQUIRE_VARIABLE) == "1":
            raise
        pytest.skip(f"no plain machines here: {error}")
    with tempfile.TemporaryDirectory(prefix="csd-target-") as folder:
        machine = PlainMachine.start(image, name or kind, Path(folder) / "run", isolated=isolated)
        try:
            machine.wait_ready()
            machine.settle()
            drive = Target(machine, Path(folder))
        except BaseException:
            machine.close()
            raise
        with contextlib.closing(drive):
            yield drive

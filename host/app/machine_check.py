"""What this machine can run, and what to install for the rest: `csd-emu doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from csd_emu.util.qemu_tools import find_qemu
from csd_emu.util.remedies import INSTALL_QEMU
from firmware_agent import __version__
from firmware_agent.common.errors import EnvironmentUnfit
from firmware_agent.common.units import format_bytes

_LEAST_BYTES = 2 << 30
_DOCKER_SECONDS = 10.0


class MachineFact(msgspec.Struct, frozen=True):
    """One thing that csd-emu needs, or can use.

    Attributes:
        name: of it.
        found: what there is; empty if there is none.
        needed_for: what cannot be done without it.
        remedy: how to get it; empty if it is there.
    """

    name: str
    found: str
    needed_for: str
    remedy: str = ""


class MachineReport(msgspec.Struct, frozen=True):
    """`csd-emu doctor`: `native` and `qemu` say whether drives of these engines can be started."""

    version: str
    native: bool
    qemu: bool
    facts: list[MachineFact]


def check_machine(folder: Path) -> MachineReport:
    """Return what this machine can run; `folder` is where state is kept. Nothing but version queries is started."""
    torch = _fact("torch", "training", lambda: metadata.version("torch"), "pip install 'csd-emu[host]'")
    qemu = _fact("QEMU", "engine: qemu", lambda: find_qemu().version)
    libvirt = _fact("libvirt", "engine: qemu", _libvirt)
    room = _fact("memory", "drives", lambda: _free(psutil.virtual_memory().available, "of memory"))
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    disk = _fact("disk", "run directories, images", lambda: _free(shutil.disk_usage(existing).free, f"at {existing}"))
    docker = _fact("Docker", "docker-compose up", _docker, "install Docker and start its service")
    processors = MachineFact("processors", f"{os.cpu_count()} ({platform.machine()})", "drives run side by side")
    python = MachineFact("Python", platform.python_version(), "everything")
    native = not (torch.remedy or room.remedy or disk.remedy)
    facts = [python, torch, processors, room, disk, qemu, libvirt, docker]
    return MachineReport(__version__, native, native and not (qemu.remedy or libvirt.remedy), facts)


def _fact(name: str, needed_for: str, find: Callable[[], str], remedy: str = "") -> MachineFact:
    try:
        return MachineFact(name, find(), needed_for)
    except (EnvironmentUnfit, OSError, metadata.PackageNotFoundError, subprocess.SubprocessError) as error:
        return MachineFact(name, "", needed_for, remedy or str(error))


def _libvirt() -> str:
    if importlib.util.find_spec("libvirt") is None:
        raise EnvironmentUnfit("libvirt-python is not installed; pip install 'csd-emu[qemu]'")
    if not (shutil.which("virtqemud") or shutil.which("libvirtd") or Path("/usr/sbin/libvirtd").exists()):
        raise EnvironmentUnfit(f"libvirt's daemon is not installed; {INSTALL_QEMU}")
    return metadata.version("libvirt-python")


def _free(free: int, what: str) -> str:
    if free < _LEAST_BYTES:
        raise EnvironmentUnfit(f"{format_bytes(free)} {what} are free; free more than {format_bytes(_LEAST_BYTES)}")
    return f"{format_bytes(free)} {what} free"


def _docker() -> str:
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_DOCKER_SECONDS).stdout.strip()

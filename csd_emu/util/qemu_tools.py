"""QEMU's programs on this machine."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from csd_emu.util.remedies import INSTALL_QEMU
from firmware_agent.common.errors import EnvironmentUnfit

# Migration to a file: address, on which templates rest.
OLDEST_QEMU = (8, 2)
PINNED_MACHINE = "virt-10.0"


@dataclass(frozen=True)
class QemuTools:
    """What was found: the emulator, its version, the machine type to use, and qemu-img (of this machine alone)."""

    emulator: str
    version: str
    machine: str
    image_tool: str


# As libvirt confines the machines that it starts.
_SANDBOX = ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")


@functools.cache
def find_qemu() -> QemuTools:
    """Find QEMU and ask it what it can do.

    Raises:
        EnvironmentUnfit: it is missing, broken or too old.
    """
    emulator, image_tool = shutil.which("qemu-system-aarch64"), shutil.which("qemu-img")
    if emulator is None or image_tool is None:
        missing = "qemu-system-aarch64" if emulator is None else "qemu-img"
        raise EnvironmentUnfit(f"{missing} is not installed; {INSTALL_QEMU}, or use --engine native")
    version = _ask(emulator, "--version")
    match = re.search(r"version (\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_QEMU:
        wanted = ".".join(map(str, OLDEST_QEMU))
        raise EnvironmentUnfit(
            f"{emulator} is {version.splitlines()[0]!r}, csd-emu needs {wanted} or newer; {INSTALL_QEMU}"
        )
    machines = {line.split()[0] for line in _ask(emulator, "-machine", "help").splitlines() if line.strip()}
    machine = PINNED_MACHINE if PINNED_MACHINE in machines else _newest_machine(machines)
    return QemuTools(emulator, version.splitlines()[0], machine, image_tool)


@functools.cache
def sandbox(emulator: str) -> tuple[str, ...]:
    """Return the arguments by which QEMU gives up system calls that it does not need; none if its build cannot."""
    try:
        _ask(emulator, *_SANDBOX, "--version")
    except EnvironmentUnfit:
        return ()
    return _SANDBOX


def make_overlay(tools: QemuTools, overlay: Path, backing: Path, backing_format: str) -> None:
    """Make a qcow2 file that holds what differs from `backing`.

    Raises:
        EnvironmentUnfit: qemu-img failed, for example for want of space.
    """
    command = [tools.image_tool, "create", "-q", "-f", "qcow2", "-b", str(backing), "-F", backing_format, str(overlay)]
    if (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode != 0:
        raise EnvironmentUnfit(
            f"{overlay}: qemu-img failed ({done.stderr.strip()}); free space, or run csd-emu image build"
        )


def _newest_machine(machines: set[str]) -> str:
    """Return the newest versioned ``virt`` machine: a device state fits only the type that it was made on."""
    versions = [tuple(map(int, m[5:].split("."))) for m in machines if re.fullmatch(r"virt-\d+\.\d+", m)]
    if not versions:
        raise EnvironmentUnfit(f"this QEMU has no ARM machine 'virt'; {INSTALL_QEMU}")
    return f"virt-{max(versions)[0]}.{max(versions)[1]}"


def _ask(emulator: str, *arguments: str) -> str:
    try:
        return subprocess.run([emulator, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentUnfit(f"{emulator} {' '.join(arguments)} fails ({error}); {INSTALL_QEMU}") from error

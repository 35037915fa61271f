"""Version of an emulator, on this machine or another, and the features that csd-emu needs."""

from __future__ import annotations

from dataclasses import dataclass

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

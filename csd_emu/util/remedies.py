"""Remedies for what is missing: a script in a clone of the repository, by hand with an installed package."""

from __future__ import annotations

from pathlib import Path

_CLONE = (Path(__file__).parents[2] / "scripts" / "install-system-packages").is_file()

INSTALL_QEMU = (
    "run scripts/install-system-packages"
    if _CLONE
    else "install QEMU 8.2 or newer for ARM and libvirt 9 or newer (Debian 13: apt install qemu-system-arm qemu-utils "
    "libvirt-daemon libvirt-daemon-driver-qemu)"
)
INSTALL_LIBVIRT_PYTHON = "run scripts/setup-python qemu" if _CLONE else "pip install 'csd-emu[qemu]'"

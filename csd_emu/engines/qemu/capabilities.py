"""Capabilities of a hypervisor's QEMU, from libvirt's XML. Pure: XML in, facts out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from csd_emu.util.qemu_version import OLDEST_QEMU, PINNED_MACHINE, QemuTools
from firmware_agent.common.errors import EnvironmentUnfit

ARCHITECTURE = "aarch64"
_REMEDY = "install QEMU for ARM there (Debian: qemu-system-arm), {} or newer"


def read_qemu(capabilities: str) -> QemuTools:
    """Return the emulator for ARM, from the XML of libvirt's capabilities.

    QEMU has a machine type of its own version, so the newest one says how old it is: libvirt's own answer is about the
    emulator of the hypervisor's architecture, which need not even be installed.

    Raises:
        EnvironmentUnfit: there is none, or it is too old.
    """
    remedy = _REMEDY.format(_dotted(OLDEST_QEMU))
    guests = [arch for arch in ElementTree.fromstring(capabilities).iterfind("guest/arch") if _emulates(arch)]
    arms = [arch for arch in guests if arch.get("name") == ARCHITECTURE]
    if not arms:
        has = ", ".join(sorted({arch.get("name", "") for arch in guests})) or "none"
        raise EnvironmentUnfit(f"has no QEMU for {ARCHITECTURE} guests (it has: {has}); {remedy}")
    emulator = arms[0].findtext("domain[@type='qemu']/emulator") or arms[0].findtext("emulator") or ""
    machines = {name.text or "" for name in arms[0].iter("machine")}
    versions = [tuple(map(int, name[5:].split("."))) for name in machines if re.fullmatch(r"virt-\d+\.\d+", name)]
    newest = max(versions, default=(0, 0))
    if newest < OLDEST_QEMU:
        raise EnvironmentUnfit(f"has QEMU {_dotted(newest)}, csd-emu needs {_dotted(OLDEST_QEMU)}; {remedy}")
    machine = PINNED_MACHINE if PINNED_MACHINE in machines else f"virt-{_dotted(newest)}"
    return QemuTools(emulator, _dotted(newest), machine, "")


def read_owner(capabilities: str) -> tuple[int, int] | None:
    """Return user and group under whom QEMU runs, if libvirt gives files to them (model ``dac``)."""
    for model in ElementTree.fromstring(capabilities).iterfind("host/secmodel"):
        if model.findtext("model") == "dac":
            for label in model.iterfind("baselabel[@type='qemu']"):
                if match := re.fullmatch(r"\+(\d+):\+(\d+)", label.text or ""):
                    return int(match[1]), int(match[2])
    return None


def confined_by(capabilities: str) -> list[str]:
    """Return the security models that confine QEMU there to the files of a domain's XML: apparmor, selinux."""
    models = ElementTree.fromstring(capabilities).iterfind("host/secmodel/model")
    return [name for model in models if (name := model.text or "") in ("apparmor", "selinux")]


def _emulates(arch: ElementTree.Element) -> bool:
    return any(domain.get("type") == "qemu" for domain in arch.iterfind("domain"))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))

"""The libvirt domain of a template or a clone, as XML. Pure: strings in, a string out."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from csd_emu.util.xml_elements import element
from firmware_agent.common.handover import UPLINK_PORT

QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
CSD_NAMESPACE = "urn:csd-emu:1"
CPU_MODEL = "cortex-a53"
# One instruction is one nanosecond of guest time, so a VM is a 1 GIPS core on every host.
ICOUNT = "shift=0,sleep=on"
ROOT_PORTS = 6
# libvirt numbers the root ports pci.1 to pci.6 and puts the template's own cards on the first ones.
CARD_BUS, SHARD_BUS, IDENTITY_BUS = "pci.4", "pci.5", "pci.6"
NETWORK_CARD = "card"
_CARD = {
    "driver": "virtio-net-pci",
    "id": NETWORK_CARD,
    "netdev": "nowhere",
    "bus": CARD_BUS,
    "romfile": "",
    "mac": "52:54:00:c5:d0:00",
}
_UPLINK = {"driver": "virtserialport", "bus": "virtio-serial0.0", "nr": 1, "chardev": "host", "name": UPLINK_PORT}
RAM_OBJECT = "csdram"
# What the serial console said last and nobody has read yet; a power of two.
CONSOLE, CONSOLE_BYTES = "console", 128 << 10
# Translated code: QEMU would take up to 1 GiB. The template's boot needs much; a clone trains in a small part of it.
TEMPLATE_TRANSLATION_MEBIBYTES, CLONE_TRANSLATION_MEBIBYTES = 256, 48

# How soon QEMU connects again; releases before 9.2 know whole seconds alone.
RECONNECT_MILLISECONDS, _OLD_RECONNECT_SECONDS, _MILLISECONDS_SINCE = 500, 1, (9, 2)

ElementTree.register_namespace("qemu", QEMU_NAMESPACE)
ElementTree.register_namespace("csd", CSD_NAMESPACE)


@dataclass(frozen=True)
class Tag:
    """Whose domain it is, kept in its metadata, so that a sweep needs no state file.

    `server` tells hosts apart that share a hypervisor; "" on csd-emu's own daemon.
    """

    array: str
    run: str
    device: str
    server: str = ""


class HostPort(NamedTuple):
    """Where a drive's QEMU connects its virtio port to: an address of the host, and its port for drives."""

    address: str
    port: int


@dataclass(frozen=True)
class DomainSpec:
    """What tells one domain from another.

    Attributes:
        name: libvirt's name.
        tag: whose it is.
        emulator: path of qemu-system-aarch64.
        machine: pinned machine type, such as virt-10.0.
        memory_bytes: DRAM.
        kernel, initrd: of the image.
        cmdline: the kernel's.
        disk: qcow2 overlay for the root file system.
        ram: file that backs the memory.
        clone: False for the template, which writes `ram`; True for a clone, which maps it copy-on-write and waits
            for the template's device state.
        host: the one thing that the machine can reach; None for the template, which reaches nothing.
        plugin: options of a TCG plugin that QEMU loads; "" for none.
    """

    name: str
    tag: Tag
    emulator: str
    machine: str
    memory_bytes: int
    kernel: Path
    initrd: Path
    cmdline: str
    disk: Path
    ram: Path
    clone: bool
    host: HostPort | None = None
    plugin: str = ""


def domain_xml(spec: DomainSpec) -> str:
    """Return the domain's XML; template and clone differ only in what `DomainSpec.clone` says."""
    translation = CLONE_TRANSLATION_MEBIBYTES if spec.clone else TEMPLATE_TRANSLATION_MEBIBYTES
    tag, server = spec.tag, {"server": spec.tag.server} if spec.tag.server else {}
    domain = element(
        "domain",
        element("name", spec.name),
        element(
            "metadata",
            element(f"{{{CSD_NAMESPACE}}}device", array=tag.array, run=tag.run, name=tag.device, **server),
        ),
        element("memory", str(spec.memory_bytes), unit="bytes"),
        element("vcpu", "1"),
        element(
            "os",
            element("type", "hvm", arch="aarch64", machine=spec.machine),
            element("kernel", str(spec.kernel)),
            element("initrd", str(spec.initrd)),
            element("cmdline", spec.cmdline),
        ),
        element(
            "features",
            element("gic", version="2"),
            element("tcg", element("tb-cache", str(translation), unit="MiB")),
        ),
        element("cpu", element("model", CPU_MODEL), mode="custom", match="exact"),
        element("on_poweroff", "destroy"),
        element("on_reboot", "destroy"),
        element("on_crash", "destroy"),
        _devices(spec),
        element(
            f"{{{QEMU_NAMESPACE}}}commandline",
            *(element(f"{{{QEMU_NAMESPACE}}}arg", value=each) for each in _arguments(spec)),
        ),
        type="qemu",
    )
    ElementTree.indent(domain)
    return ElementTree.tostring(domain, encoding="unicode")


def read_tag(xml: str) -> Tag | None:
    """Return the tag in a domain's XML, or None if the domain is not ours."""
    if (element := ElementTree.fromstring(xml).find(f"metadata/{{{CSD_NAMESPACE}}}device")) is None:
        return None
    return Tag(element.get("array", ""), element.get("run", ""), element.get("name", ""), element.get("server", ""))


def _devices(spec: DomainSpec) -> ElementTree.Element:
    return element(
        "devices",
        element("emulator", spec.emulator),
        element(
            "disk",
            element("driver", name="qemu", type="qcow2", cache="unsafe", discard="unmap"),
            element("source", file=str(spec.disk)),
            element("target", dev="vda", bus="virtio"),
            type="file",
            device="disk",
        ),
        element("controller", type="usb", model="none"),
        element("controller", type="pci", model="pcie-root"),
        *(element("controller", type="pci", model="pcie-root-port") for _ in range(ROOT_PORTS)),
        element("controller", type="virtio-serial", index="0"),
        element("memballoon", model="none"),
    )


def _arguments(spec: DomainSpec) -> list[str]:
    """Return QEMU's arguments for what libvirt's XML has no word for."""
    sharing = "share=off,readonly=on,rom=off" if spec.clone else "share=on"
    return [
        *("-icount", ICOUNT),
        *("-object", f"memory-backend-file,id={RAM_OBJECT},size={spec.memory_bytes},mem-path={spec.ram},{sharing}"),
        *("-machine", f"memory-backend={RAM_OBJECT}"),
        # A file would grow as long as the drive says anything, and libvirt knows no ring for a serial port.
        *("-chardev", f"ringbuf,id={CONSOLE},size={CONSOLE_BYTES}", "-serial", f"chardev:{CONSOLE}"),
        # The card leads nowhere. Its cable, which can be pulled, tells the drive whether its port shall carry anything.
        # Devices as JSON, for so libvirt writes them, and QEMU makes all others before.
        *("-netdev", "hubport,id=nowhere,hubid=0"),
        *("-device", json.dumps(_CARD)),
        *("-chardev", _host_connection(spec)),
        *("-device", json.dumps(_UPLINK)),
        *(("-incoming", "defer") if spec.clone else ()),
        *(("-plugin", spec.plugin) if spec.plugin else ()),
    ]


def _host_connection(spec: DomainSpec) -> str:
    """Return the QEMU character device behind the virtio port.

    libvirt's ``<channel type='tcp'>`` would do, but for Nagle's algorithm, which it cannot switch off.
    """
    if spec.host is None:
        return "null,id=host"
    milliseconds = tuple(map(int, spec.machine.removeprefix("virt-").split("."))) >= _MILLISECONDS_SINCE
    again = f"reconnect-ms={RECONNECT_MILLISECONDS}" if milliseconds else f"reconnect={_OLD_RECONNECT_SECONDS}"
    address = spec.host.address.replace(",", ",,")
    return f"socket,id=host,host={address},port={spec.host.port},server=off,nodelay=on,{again}"

import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.engines.qemu.domain_xml import (
    CPU_MODEL,
    ICOUNT,
    QEMU_NAMESPACE,
    DomainSpec,
    HostPort,
    Tag,
    domain_xml,
    read_tag,
)

SPEC = DomainSpec(
    name="csd-lab-csd-00",
    tag=Tag("lab", "0123abcd", "csd-00"),
    emulator="/usr/bin/qemu-system-aarch64",
    machine="virt-10.0",
    memory_bytes=2 << 30,
    kernel=Path("/cache/vmlinuz"),
    initrd=Path("/cache/initrd"),
    cmdline="root=/dev/vda ro",
    disk=Path("/state/disk.qcow2"),
    ram=Path("/cache/ram"),
    clone=True,
)
texts = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=12)


def arguments(xml: str) -> list[str]:
    line = ElementTree.fromstring(xml).find(f"{{{QEMU_NAMESPACE}}}commandline")
    assert line is not None
    return [argument.get("value", "") for argument in line]


@given(tag=st.builds(Tag, texts, texts, texts), clone=st.booleans())
def test_a_tag_comes_back_from_the_xml(tag: Tag, clone: bool) -> None:
    assert read_tag(domain_xml(dataclasses.replace(SPEC, tag=tag, clone=clone))) == tag


@pytest.mark.parametrize(
    "xml",
    [
        "<domain type='kvm'><name>web</name></domain>",
        "<domain><name>csd-lab-csd-00</name><metadata><other xmlns='urn:other:1' array='lab'/></metadata></domain>",
        "<domain><metadata><device array='lab' run='1' name='csd-00'/></metadata></domain>",
    ],
)
def test_a_foreign_domain_has_no_tag_whatever_its_name(xml: str) -> None:
    assert read_tag(xml) is None


@given(name=texts, path=texts, cmdline=texts, clone=st.booleans())
def test_any_text_stays_text(name: str, path: str, cmdline: str, clone: bool) -> None:
    disk = Path("/state") / path.replace("/", "_")
    spec = dataclasses.replace(SPEC, name=name, disk=disk, cmdline=cmdline, clone=clone)
    root = ElementTree.fromstring(domain_xml(spec))
    source = root.find("devices/disk/source")
    assert (root.findtext("name"), root.findtext("os/cmdline")) == (name, cmdline)
    assert source is not None
    assert source.get("file") == str(disk)


def test_what_every_domain_has() -> None:
    root = ElementTree.fromstring(domain_xml(SPEC))
    assert root.get("type") == "qemu"  # TCG: under KVM nothing counts instructions
    assert root.findtext("name") == "csd-lab-csd-00"
    assert (root.findtext("vcpu"), root.findtext("cpu/model"), root.findtext("memory")) == (
        "1",
        CPU_MODEL,
        str(2 << 30),
    )
    machine = root.find("os/type")
    assert machine is not None
    assert (machine.get("arch"), machine.get("machine")) == ("aarch64", "virt-10.0")
    assert {root.findtext(f"on_{what}") for what in ("poweroff", "reboot", "crash")} == {"destroy"}
    line = arguments(domain_xml(SPEC))
    assert line[line.index("-icount") + 1] == ICOUNT == "shift=0,sleep=on"
    assert line[line.index("-serial") + 1] == "chardev:console"
    assert "ringbuf,id=console,size=131072" in line  # a file would grow without bound


def test_template_and_clone_differ_in_their_memory_and_in_waiting_for_a_state_alone() -> None:
    clone, template = (domain_xml(dataclasses.replace(SPEC, clone=kind)) for kind in (True, False))
    assert arguments(clone)[-2:] == ["-incoming", "defer"]
    assert "-incoming" not in arguments(template)
    (memory_of_clone,) = (value for value in arguments(clone) if value.startswith("memory-backend-file"))
    (memory_of_template,) = (value for value in arguments(template) if value.startswith("memory-backend-file"))
    common = memory_of_template.removesuffix("share=on")
    assert memory_of_template == common + "share=on"
    assert memory_of_clone.startswith(common + "share=off")
    assert "share=on" not in memory_of_clone
    rest = [value for value in arguments(clone)[:-2] if value != memory_of_clone]
    assert rest == [value for value in arguments(template) if value != memory_of_template]
    assert common_part(clone) == common_part(template)


def common_part(xml: str) -> str:
    """What the device state rests on: all but the command line and the size of QEMU's own translation buffer."""
    root = ElementTree.fromstring(xml)
    features, buffer = root.find("features"), root.find("features/tcg")
    assert features is not None
    assert buffer is not None
    features.remove(buffer)
    line = root.find(f"{{{QEMU_NAMESPACE}}}commandline")
    assert line is not None
    root.remove(line)
    return ElementTree.tostring(root, encoding="unicode")


def connection(spec: DomainSpec) -> str:
    """QEMU's character device behind the virtio port."""
    (found,) = (value for value in arguments(domain_xml(spec)) if value.endswith("id=host") or ",id=host," in value)
    return found


@given(port=st.integers(1, 65535), address=st.ip_addresses(v=4).map(str))
def test_the_one_way_out_leads_to_the_hosts_port_for_drives(port: int, address: str) -> None:
    spec = dataclasses.replace(SPEC, host=HostPort(address, port))
    expected = f"socket,id=host,host={address},port={port},server=off,nodelay=on,reconnect-ms=500"
    assert connection(spec) == expected
    # No interface of libvirt's, and no network of QEMU's, but the card that leads nowhere.
    xml = domain_xml(spec)
    assert ElementTree.fromstring(xml).find("devices/interface") is None
    line = arguments(xml)
    assert [line[at + 1] for at, value in enumerate(line) if value == "-netdev"] == ["hubport,id=nowhere,hubid=0"]
    assert not any("user" in value or "hostfwd" in value or "guestfwd" in value for value in line)


def test_a_host_with_a_comma_adds_no_option() -> None:
    spec = dataclasses.replace(SPEC, host=HostPort("host,path=/etc", 1))
    assert connection(spec).startswith("socket,id=host,host=host,,path=/etc,port=1,")


def test_an_older_qemu_is_asked_for_whole_seconds() -> None:
    spec = dataclasses.replace(SPEC, machine="virt-9.1", host=HostPort("127.0.0.1", 1))
    assert connection(spec).endswith(",reconnect=1")


def test_a_template_reaches_nothing() -> None:
    assert connection(dataclasses.replace(SPEC, clone=False, host=None)) == "null,id=host"

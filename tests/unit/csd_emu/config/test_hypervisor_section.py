"""Hypervisors in the array file, and what their libvirt says of QEMU."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.hypervisors import name_hypervisors
from csd_emu.engines.qemu.remote_hypervisor import confined_by, read_owner, read_qemu
from csd_emu.util.config_files import parse_config
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit

BASE: dict[str, Any] = {"name": "lab", "devices": [{"profile": "newport"}]}
uris = st.sampled_from(
    ["qemu:///session", "qemu:///system", "qemu+ssh://me@rack-1/session", "qemu+tls://rack-1/system", "qemu+ssh://b/x"]
)


def parse(**keys: Any) -> ArrayConfig:
    return parse_config(BASE | keys, ArrayConfig, "array.yaml")


@given(st.lists(uris, min_size=1, max_size=6))
def test_every_hypervisor_has_a_name_of_its_own_and_a_file_comes_back_as_it_was(entries: list[str]) -> None:
    config = parse(hypervisors=entries)
    named = config.named_hypervisors
    assert [section.uri for section in named.values()] == entries
    assert parse_config(config.model_dump(mode="json"), ArrayConfig, "again") == config
    assert config.model_dump(mode="json")["hypervisors"] == entries


def test_names_are_hosts_unless_they_are_given() -> None:
    entries = ["qemu:///session", "qemu+ssh://me@rack-1/session", "qemu+ssh://you@rack-1/system"]
    config = parse(hypervisors=[*entries, {"uri": "qemu+tls://10.0.0.7/system", "name": "cellar"}])
    assert list(config.named_hypervisors) == ["local", "rack-1", "rack-1-2", "cellar"]
    clash = parse(hypervisors=["qemu+ssh://rack-1/session", {"uri": "qemu+ssh://b/session", "name": "rack-1"}])
    assert list(clash.named_hypervisors) == ["rack-1-2", "rack-1"]


def test_a_wrong_entry_is_named(subtests: pytest.Subtests) -> None:
    for entries, want in [
        ([{"uri": "qemu+ssh://a/session", "core": 3}], "hypervisors[0].core: unknown key; did you mean 'cores'?"),
        ([{"name": "a"}], "hypervisors[0].uri: is missing; add it"),
        ([3], "hypervisors[0]: must be a mapping of keys to values"),
        ([{"uri": "x", "memory": 3}], "hypervisors[0].memory: 3 is not a quantity"),
        ([{"uri": "x", "disk": "0 B"}], "disk must be more than 0 B"),
        ([{"uri": "x", "cores": 0}], "hypervisors[0].cores: "),
        ([{"uri": "x", "pool_path": "images"}], "pool_path: 'images' must be an absolute path"),
        ([{"uri": "qemu:///session", "pool_path": "/images"}], "uses files of this machine; leave them out"),
        ([{"uri": "x", "name": "a"}, {"uri": "y", "name": "a"}], "a is there twice; give every one a name of its own"),
        ([], "hypervisors: "),
    ]:
        with subtests.test(entries=entries, want=want):
            with pytest.raises(ConfigurationError) as caught:
                parse(hypervisors=entries)
            (line,) = str(caught.value).splitlines()
            assert want in line


def test_where_a_hypervisor_is() -> None:
    sections = name_hypervisors(
        ["qemu:///session", "qemu+unix:///session?socket=/s", "qemu+ssh://localhost/system", "qemu+ssh://rack-1/system"]
    )
    assert [section.local for section in sections.values()] == [True, False, False, False]
    assert [section.host for section in sections.values()] == [None, None, None, "rack-1"]
    assert [section.system for section in sections.values()] == [False, False, True, True]


def capabilities(*guests: str, security: str = "") -> str:
    return f"<capabilities><host>{security}</host>{''.join(guests)}</capabilities>"


def guest(name: str, *machines: str, kind: str = "qemu") -> str:
    found = "".join(f"<machine maxCpus='512'>{machine}</machine>" for machine in machines)
    emulator = f"<emulator>/usr/bin/qemu-system-{name}</emulator>"
    return f"<guest><arch name='{name}'>{emulator}{found}<domain type='{kind}'/></arch></guest>"


def test_the_emulator_for_arm_is_found_and_the_pinned_machine_is_taken() -> None:
    tools = read_qemu(
        capabilities(guest("x86_64", "pc"), guest("aarch64", "virt-8.2", "virt-10.1", "virt-10.0", "virt"))
    )
    assert (tools.emulator, tools.version, tools.machine) == ("/usr/bin/qemu-system-aarch64", "10.1", "virt-10.0")
    assert read_qemu(capabilities(guest("aarch64", "virt-8.2", "virt-9.1"))).machine == "virt-9.1"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (
            capabilities(guest("x86_64", "pc"), guest("riscv64", "virt")),
            r"no QEMU for aarch64 guests \(it has: riscv64, x",
        ),
        (capabilities(), r"no QEMU for aarch64 guests \(it has: none\)"),
        (capabilities(guest("aarch64", "virt-10.0", kind="kvm")), "no QEMU for aarch64 guests"),
        (capabilities(guest("aarch64", "virt-7.2", "virt-8.1")), "has QEMU 8.1, csd-emu needs 8.2"),
        (capabilities(guest("aarch64", "versatilepb")), "csd-emu needs 8.2"),
    ],
)
def test_a_hypervisor_without_a_fitting_emulator_is_refused_with_what_it_has(text: str, want: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=want):
        read_qemu(text)


def test_whose_files_are_and_what_confines_them() -> None:
    labels = "<baselabel type='kvm'>+1:+2</baselabel><baselabel type='qemu'>+64055:+109</baselabel>"
    dac = f"<secmodel><model>dac</model>{labels}</secmodel>"
    text = capabilities(security=f"<secmodel><model>apparmor</model></secmodel>{dac}")
    assert read_owner(text) == (64055, 109)
    assert confined_by(text) == ["apparmor"]
    assert read_owner(capabilities()) is None
    assert confined_by(capabilities()) == []

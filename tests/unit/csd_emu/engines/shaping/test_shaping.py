"""Shapers: what the kernel is asked for, what is left when it refuses, and which one an array gets."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import NativeEngine, make_engine
from csd_emu.engines import shaping as choose
from csd_emu.engines.shaping import Shape, link_shape, make_shaper
from csd_emu.engines.shaping.namespace_shaper import NamespacedLink, can_make_namespaces
from csd_emu.engines.shaping.relay_shaper import RelayedLink
from csd_emu.util.config_files import parse_config
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,30}", fullmatch=True)
SHAPE = Shape(1e6)


class Kernel:
    """A fake of `ip` and `tc`: it keeps the namespaces, and refuses the command that begins as it is told."""

    def __init__(self, folder: Path, refuse: str = "nothing") -> None:
        self.folder, self.refuse = folder, refuse
        self.said: list[str] = []

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        line = " ".join(command)
        self.said.append(line)
        if line.startswith(self.refuse):
            return subprocess.CompletedProcess(command, 2, "", "Operation not permitted\n")
        if line.startswith("ip netns add"):
            (self.folder / command[-1]).touch()
        if line.startswith("ip netns del"):
            (self.folder / command[-1]).unlink()
        return subprocess.CompletedProcess(command, 0, "", "")


def config(link: dict[str, Any], **changes: Any) -> ArrayConfig:
    base = {"name": "lab", "engine": "native", "clock": "wall", "devices": [{"profile": "newport"}], "link": link}
    return parse_config(base | changes, ArrayConfig, "array.yaml")


def test_both_ends_get_the_bucket_and_a_change_reaches_both(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    link = NamespacedLink("lab", Shape(1.25e6), kernel, tmp_path)
    link.open()
    link.open()  # is there already
    buckets = [line for line in kernel.said if " tbf " in line]
    assert [line.startswith("tc -n csd-emu-lab") for line in buckets] == [False, True]
    assert all("rate 10000000bit" in line for line in buckets)
    assert sum(line.startswith("ip netns add") for line in kernel.said) == 1
    link.check()
    link.change(Shape(2.5e6))
    assert all("qdisc change" in line and "rate 20000000bit" in line for line in kernel.said[-2:])
    link.close()
    link.close()
    assert list(tmp_path.iterdir()) == []
    assert sum(line.startswith("ip netns del") for line in kernel.said) == 1
    with pytest.raises(EnvironmentUnfit, match="csd-emu clean lab"):
        link.check()


@pytest.mark.parametrize("refused", ["ip netns add", "ip link add", "ip addr", "ip -n", "tc qdisc", "tc -n"])
def test_what_the_kernel_refuses_is_said_and_nothing_is_left(tmp_path: Path, refused: str) -> None:
    link = NamespacedLink("lab", SHAPE, Kernel(tmp_path, refused), tmp_path)
    with pytest.raises(EnvironmentUnfit, match=r"Operation not permitted.*link\.shaped: relay"):
        link.open()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_tool_is_said(tmp_path: Path) -> None:
    def missing(_: Sequence[str]) -> subprocess.CompletedProcess[str]:
        raise FileNotFoundError("ip")

    with pytest.raises(EnvironmentUnfit, match="iproute2"):
        NamespacedLink("lab", SHAPE, missing, tmp_path).open()


def test_a_namespace_has_no_latency_to_give(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match="relay"):
        NamespacedLink("lab", Shape(1e6, 0.01), Kernel(tmp_path), tmp_path).open()
    assert list(tmp_path.iterdir()) == []


@given(NAMES)
def test_names_and_addresses_fit(name: str) -> None:
    link = NamespacedLink(name, SHAPE)
    parts = [int(part) for part in link.dial_address.split(".")]
    assert parts[0] == 198
    assert parts[1] in (18, 19)
    assert parts[3] % 4 == 1
    assert link.listen_address == link.dial_address
    assert all(len(end) <= 15 for end in (link._here, link._there))
    relayed = RelayedLink(Path("arrays"), name, SHAPE)
    ends = [int(part) for part in relayed.dial_address.split(".")]
    assert ends[0] == 127
    assert 64 <= ends[1] < 192  # not where this machine's own servers listen
    assert 1 <= ends[3] <= 254


def test_rights_are_read_from_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/sbin/{name}")
    for rights, able in (("000001ffffffffff", True), ("0000000000200000", False), ("00000000a80425fb", False)):
        status.write_text(f"Name:\tx\nCapEff:\t{rights}\n", encoding="ascii")
        assert can_make_namespaces(status) is able
    assert not can_make_namespaces(tmp_path / "none")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert not can_make_namespaces(status)


@pytest.mark.parametrize(
    ("shaped", "latency", "able", "kind"),
    [
        ("auto", "50 us", True, NamespacedLink),
        ("auto", "50 us", False, RelayedLink),
        ("auto", "20 ms", True, RelayedLink),
        ("namespace", "50 us", False, NamespacedLink),
        ("relay", "50 us", True, RelayedLink),
    ],
)
def test_auto_takes_what_the_machine_allows(
    shaped: str, latency: str, able: bool, kind: type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choose, "can_make_namespaces", lambda: able)
    link = {"bandwidth": "1 MB/s", "latency": latency, "shaped": shaped}
    assert isinstance(make_shaper(config(link), tmp_path), kind)


def test_the_shape_is_the_files_or_the_hosts(tmp_path: Path) -> None:
    assert link_shape(config({"bandwidth": "10 Mbit/s", "latency": "2 ms"})) == Shape(1.25e6, 0.002)
    assert link_shape(config({})).bytes_per_second > 1e8
    assert make_shaper(config({}), tmp_path) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "qemu", "clock": "auto"},
        {"clock": "auto"},
        {"clock": "modelled"},
        {"host": {"trains": True}},
        {"devices": [{"profile": "newport"}, {"profile": "newport", "engine": "qemu", "name": "q"}]},
        {"link": {"shaped": "auto", "shared": False}},
    ],
)
def test_only_native_drives_on_the_wall_clock_are_shaped(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"link\.shaped"):
        config(**({"link": {"shaped": "auto"}} | changes))


def test_a_link_that_is_not_shaped_cannot_be_changed(tmp_path: Path) -> None:
    engine = make_engine(config({}), Paths(tmp_path, tmp_path, tmp_path))
    assert isinstance(engine, NativeEngine)
    with pytest.raises(EnvironmentUnfit, match=r"add link\.shaped: auto"):
        engine.shape(SHAPE)

"""The servers file, and what one server reads of all."""

from __future__ import annotations

import itertools
import socket
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from csd_emu.config.servers_file import ServersConfig
from csd_emu.util.config_files import parse_config
from firmware_agent.common.errors import ConfigurationError
from host.config.server_group import ServerGroup, load_server_group, read_server_group
from host.training.multi_server.membership import code_sha256
from host.training.multi_server.worker.worker_process import Arguments, WorkerPlan, own_address
from tests.support.examples import examples

ARRAY: dict[str, Any] = {"name": "rack", "engine": "native", "devices": [{"profile": "newport", "count": 2}]}
NAME = st.from_regex(r"[a-z][a-z0-9-]{0,4}", fullmatch=True)


def config(servers: Any = ({"name": "a", "array": "array.yaml"},), **fields: Any) -> ServersConfig:
    return parse_config({"name": "hall", "servers": list(servers)} | fields, ServersConfig, "servers.yaml")


class Files:
    """A folder with a servers file and its array files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, content: Any) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    def server_group(self, server: str, arrays: dict[str, Any], **fields: Any) -> ServerGroup:
        """What `server` reads where each server has an array file of its own."""
        groups = [{"name": name, "array": f"{name}.yaml"} for name in arrays]
        for name, array in arrays.items():
            self.write(f"{name}.yaml", array)
        return read_server_group(self.write("servers.yaml", {"name": "hall", "servers": groups} | fields), server)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.slow
@given(st.lists(st.tuples(NAME, st.integers(1, 120)), min_size=1, max_size=4))
def test_servers_are_named_once_and_found_by_their_names(groups: list[tuple[str, int]]) -> None:
    numbered = [
        [name] if count == 1 else [f"{name}-{n:0{len(str(count - 1))}d}" for n in range(count)]
        for name, count in groups
    ]
    names = list(itertools.chain.from_iterable(numbered))
    servers = [{"name": name, "count": count, "array": "a.yaml"} for name, count in groups]
    if len(set(names)) < len(names):
        with pytest.raises(ConfigurationError, match="is there twice"):
            config(servers)
        return
    made = config(servers)
    assert made.names == names
    for (name, _), group in zip(groups, numbered, strict=True):
        assert all(made.group_of(each).name == name for each in group)
    with pytest.raises(KeyError):
        made.group_of("none")


def test_what_is_not_said() -> None:
    made = config()
    assert (str(made.network), str(made.store.address), made.store.port) == ("127.0.0.0/8", "127.0.0.1", 29400)
    assert (made.membership.min, made.membership.wait, made.membership.silence) == (1, 600.0, 10.0)
    assert (made.link.bandwidth, made.link.latency, made.reduce_every) == (1.25e9, pytest.approx(50e-6), 1)


def test_what_cannot_be_is_refused(subtests: pytest.Subtests) -> None:
    for fields, says in [
        ({"servers": []}, "servers"),
        ({"servers": [{"name": "A", "array": "x"}]}, "name"),
        ({"servers": [{"name": "abcdefghij", "array": "x"}]}, "name"),
        ({"servers": [{"name": "a", "array": ""}]}, "array"),
        ({"servers": [{"name": "a", "array": "x", "count": 0}]}, "count"),
        ({"servers": [{"name": "a", "array": "x", "count": 2, "address": "127.0.0.2"}]}, "address is of one server"),
        ({"servers": [{"name": "a", "array": "x"}, {"name": "a", "array": "y"}]}, "a is there twice"),
        ({"servers": [{"name": "a", "array": "x", "count": 9999}, {"name": "b", "array": "x", "count": 2}]}, "10000"),
        ({"servers": [{"name": "a", "array": "x", "address": "10.0.0.1"}]}, "10.0.0.1 is outside of 127.0.0.0/8"),
        ({"network": "10.1.0.0/16"}, "127.0.0.1 is outside of 10.1.0.0/16"),
        ({"store": {"address": "192.168.1.1"}}, "192.168.1.1 is outside"),
        ({"store": {"port": 80}}, "port"),
        ({"membership": {"min": 2}}, "2 servers, and there are 1"),
        ({"membership": {"silence": "1 ms"}}, "must be 1 s or more"),
        ({"membership": {"wait": "0 s"}}, "must be 1 s or more"),
        ({"link": {"bandwidth": "0 B/s"}}, "more than 0 B/s"),
        ({"reduce_every": 0}, "reduce_every"),
        ({"colour": "red"}, "colour"),
    ]:
        with subtests.test(fields=fields, says=says):
            with pytest.raises(ConfigurationError, match=r"servers\.yaml") as refused:
                config(**fields)
            assert says in str(refused.value)


def test_drives_are_named_for_their_servers(files: Files) -> None:
    mixed = ARRAY | {"devices": [{"profile": "newport"}, {"profile": "newport", "count": 2, "name": "fast"}]}
    server_group = files.server_group("b", {"a": ARRAY, "b": mixed})
    assert [device.name for device in server_group.devices] == ["a-00", "a-01", "b-00", "b-fast-00", "b-fast-01"]
    assert [device.name for device in server_group.own.list_devices()] == ["b-00", "b-fast-00", "b-fast-01"]
    assert (server_group.server, server_group.own.name, server_group.whole.name) == ("b", "rack-b", "hall")
    assert {device.engine for device in server_group.devices} == {"native"}


def test_servers_of_one_group_share_an_array_file_and_not_their_names(files: Files) -> None:
    files.write("array.yaml", ARRAY)
    path = files.write("s.yaml", {"name": "h", "servers": [{"name": "r", "count": 3, "array": "array.yaml"}]})
    server_groups = {name: read_server_group(path, name) for name in ("r-0", "r-1", "r-2")}
    assert len({server_group.own.name for server_group in server_groups.values()}) == 3
    assert len({server_group.sha256 for server_group in server_groups.values()}) == 1
    own = [device.name for server_group in server_groups.values() for device in server_group.own.list_devices()]
    assert own == [device.name for device in server_groups["r-0"].devices]


def test_a_hall_has_more_drives_than_an_array_may(files: Files) -> None:
    files.write("array.yaml", ARRAY | {"devices": [{"profile": "newport", "count": 36}]})
    path = files.write("s.yaml", {"name": "h", "servers": [{"name": "r", "count": 20, "array": "array.yaml"}]})
    assert len(read_server_group(path, "r-07").devices) == 720


@pytest.mark.parametrize(
    ("arrays", "fields", "says"),
    [
        ({"abcdefghi": ARRAY | {"devices": [{"profile": "newport", "name": "fast"}]}}, {}, "abcdefghi"),
        ({"a": ARRAY, "b": ARRAY | {"clock": "wall"}}, {}, "server b has clock: wall, the first one auto"),
        ({"a": ARRAY | {"host": {"trains": True}}}, {}, "a.yaml: host.trains"),
        ({"a": ARRAY, "b": ARRAY | {"devices": []}}, {}, "b.yaml"),
        ({"a": ARRAY | {"devices": [{"profile": "newport", "name": "x"}]}, "a-x": ARRAY}, {}, "a-x-00"),
        ({"a": ARRAY}, {"store": {"address": "10.0.0.1"}}, "outside"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    files: Files, arrays: dict[str, Any], fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        files.server_group(next(iter(arrays)), arrays, **fields)
    assert says in str(refused.value)


def test_a_server_that_is_not_there_and_an_array_that_is_not(files: Files) -> None:
    with pytest.raises(ConfigurationError, match="has no server 'c'; there are: a, b"):
        files.server_group("c", {"a": ARRAY, "b": ARRAY})
    (files.folder / "b.yaml").unlink()
    with pytest.raises(ConfigurationError, match=r"b\.yaml"):
        read_server_group(files.folder / "servers.yaml", "a")


CHANGES: list[dict[str, Any]] = [
    {"devices": [{"profile": "newport", "count": 3}]},
    {"devices": [{"profile": "generic-a53", "count": 2}]},
    {"devices": [{"profile": "newport", "count": 2, "name": "fast"}]},
    {"link": {"bandwidth": "1 GB/s"}},
    {"link": {"latency": "1 ms"}},
    {"memory": "4 GiB"},
]


@settings(max_examples=examples(20))
@given(st.sampled_from("abc"), st.sampled_from(CHANGES), st.sampled_from("abc"))
def test_the_hash_is_everyones_and_another_one_if_any_array_file_is(
    tmp_path_factory: pytest.TempPathFactory, changed: str, change: dict[str, Any], server: str
) -> None:
    files = Files(tmp_path_factory.mktemp("hall"))
    before = files.server_group("a", dict.fromkeys("abc", ARRAY)).sha256
    assert files.server_group(server, dict.fromkeys("abc", ARRAY)).sha256 == before
    assert files.server_group(server, dict.fromkeys("abc", ARRAY) | {changed: ARRAY | change}).sha256 != before


def test_where_servers_find_each_other_is_none_of_the_hash_and_all_else_is(files: Files) -> None:
    before = files.server_group("a", {"a": ARRAY, "b": ARRAY}).sha256
    assert files.server_group("a", {"a": ARRAY, "b": ARRAY}, store={"port": 4000}).sha256 == before
    assert files.server_group("a", {"a": ARRAY, "b": ARRAY}, link={"latency": "1 ms"}).sha256 != before
    assert files.server_group("a", {"a": ARRAY, "b": ARRAY}, membership={"min": 2}).sha256 != before
    assert files.server_group("a", {"b": ARRAY, "a": ARRAY}).sha256 != before


def test_the_code_is_hashed_with_its_paths(tmp_path: Path) -> None:
    def make(name: str, files: dict[str, str]) -> str:
        for path, text in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return code_sha256(tmp_path / name)

    first = make("1", {"host/a.py": "x", "csd_emu/b.py": "y"})
    assert make("2", {"host/a.py": "x", "csd_emu/b.py": "y", "host/notes.txt": "z", "tests/t.py": "z"}) == first
    assert make("3", {"host/a.py": "X", "csd_emu/b.py": "y"}) != first
    assert make("4", {"host/c.py": "x", "csd_emu/b.py": "y"}) != first
    assert make("5", {"host/a.py": "x", "csd_emu/b.py": "y", "firmware_agent/c.py": ""}) != first


def test_traffic_is_bound_to_the_servers_network_or_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_address(config(), "a")[0].is_loopback
    group = {"name": "a", "array": "x", "address": "127.0.0.9"}
    assert str(own_address(config([group]), "a")[0]) == "127.0.0.9"
    # Blocks for documentation (RFC 5737).
    card = SimpleNamespace(family=socket.AF_INET, address="198.51.100.7")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": [], "eth1": [card]})
    elsewhere = config(network="192.0.2.0/24", store={"address": "192.0.2.1"})
    with pytest.raises(ConfigurationError, match=r"server a: this machine does not have an address in 192\.0\.2\.0/24"):
        own_address(elsewhere, "a")
    there = {"network": "198.51.100.0/24", "store": {"address": "198.51.100.1"}}
    assert own_address(config(**there), "a") == (IPv4Address("198.51.100.7"), "eth1")
    with pytest.raises(ConfigurationError, match=r"does not have the address 198\.51\.100\.8"):
        own_address(config([group | {"address": "198.51.100.8"}], **there), "a")


def test_the_worker_is_told_where_and_how_many(tmp_path: Path) -> None:
    servers = [{"name": name, "array": "x"} for name in "abc"]
    made = config(servers, membership={"min": 2, "silence": "7 s"}, store={"port": 4321, "key": "/k.pem"})
    command, environment = WorkerPlan(made, "b", "run1", tmp_path / "socket", tmp_path / "log").launch()
    told = msgspec.json.decode(command[-1], type=Arguments)
    assert told == Arguments(
        "b", ["a", "b", "c"], str(tmp_path / "socket"), ("127.0.0.1", 4321, "/k.pem"), "run1", 2, 7.0
    )
    assert environment["GLOO_SOCKET_IFNAME"]


@pytest.mark.parametrize("wanted", [None, "198.51.100.7"])
def test_an_address_that_gloo_would_not_listen_on_is_refused(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None
) -> None:
    cards = [SimpleNamespace(family=socket.AF_INET, address=each) for each in ("192.0.2.5", "198.51.100.7")]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth1": cards})
    there = {"network": "198.51.100.0/24", "store": {"address": "198.51.100.1"}}
    given = config([{"name": "a", "array": "x", "address": wanted}], **there)
    with pytest.raises(ConfigurationError, match=r"eth1 has 192\.0\.2\.5 before 198\.51\.100\.7, and gloo listens on"):
        own_address(given, "a")
    two = {"eth1": cards, "eth2": cards[1:]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: two)
    assert own_address(given, "a") == (IPv4Address("198.51.100.7"), "eth2")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth1": cards[::-1]})
    assert own_address(given, "a") == (IPv4Address("198.51.100.7"), "eth1")


def test_the_model_itself_refuses() -> None:
    with pytest.raises(ValidationError, match="outside"):
        ServersConfig.model_validate(
            {"name": "hall", "servers": [{"name": "a", "array": "x"}], "network": "10.0.0.0/8"}
        )


def test_what_a_run_directory_says_of_the_servers_is_what_was_read(files: Files, tmp_path: Path) -> None:
    server_group = files.server_group("b", {"a": ARRAY, "b": ARRAY | {"name": "other"}})
    path = tmp_path / "servers.json"
    path.write_bytes(msgspec.json.encode(server_group.dump()))
    assert load_server_group(path) == server_group
    assert load_server_group(path).sha256 == server_group.sha256
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"servers\.json: does not say"):
        load_server_group(path)

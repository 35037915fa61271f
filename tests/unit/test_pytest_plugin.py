"""The pytest plugin: what its marks mean, and that a project that does not use it pays next to nothing."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.array import ArrayConfig
from firmware_agent.errors import ConfigurationError, DeviceError, DeviceLost
from host.pytest_plugin.array import read_records
from host.pytest_plugin.keeping import Ticket
from host.pytest_plugin.lab import file_name
from host.pytest_plugin.settings import merge

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "pydantic", "libvirt", "grpc", "msgspec", "yaml", "host.pytest_plugin.lab", "asyncio")


def test_loading_the_plugin_imports_nothing_but_pytest() -> None:
    program = f"""
import sys
import pytest
before = set(sys.modules)
import host.pytest_plugin.plugin
print([name for name in {HEAVY} if name in set(sys.modules) - before])
print(sorted(name for name in set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy, new = done.stdout.splitlines()
    assert heavy == "[]"
    assert new == "['host', 'host.pytest_plugin', 'host.pytest_plugin.plugin']"


def test_the_package_announces_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"csd-emu": "host.pytest_plugin.plugin"}


@pytest.mark.parametrize(
    ("asked", "usual", "engine", "keys"),
    [
        ({}, "", None, {"devices": [{"profile": "newport", "count": 2}]}),
        ({"devices": 3}, "", None, {"devices": [{"profile": "newport", "count": 3}]}),
        ({"profile": "solana"}, "", None, {"devices": [{"profile": "solana", "count": 2}]}),
        ({"array": "a.yaml"}, "native", None, {"array": "a.yaml"}),
        ({"array": "a.yaml"}, "", "native", {"array": "a.yaml", "engine": "native"}),
        (
            {"array": "a.yaml", "devices": 1},
            "",
            None,
            {"array": "a.yaml", "devices": [{"profile": "newport", "count": 1}]},
        ),
        ({"devices": [{"profile": "newport"}]}, "", None, {"devices": [{"profile": "newport"}]}),
    ],
)
def test_marks_and_options_become_keys_of_an_array_file(
    asked: dict[str, Any], usual: str, engine: str | None, keys: dict[str, Any]
) -> None:
    assert merge(asked, usual, engine) == keys


@given(st.sampled_from([None, "qemu", "native"]), st.sampled_from(["", "native"]), st.sampled_from([None, "native"]))
def test_the_command_line_goes_before_the_mark_and_that_before_the_ini_file(
    mark: str | None, usual: str, option: str | None
) -> None:
    keys = merge({} if mark is None else {"engine": mark}, usual, option)
    assert keys.get("engine", "") == (option or mark or usual)


@given(st.integers(1, 64), st.sampled_from(["newport", "solana", "generic-a53"]))
def test_a_mark_makes_a_valid_array(devices: int, profile: str) -> None:
    config = ArrayConfig.model_validate(merge({"devices": devices, "profile": profile}, "", None) | {"name": "lab"})
    assert [device.profile for device in config.list_devices()] == [profile] * devices


def test_a_profile_does_not_go_with_groups() -> None:
    with pytest.raises(pytest.UsageError, match="profile="):
        merge({"devices": [{"profile": "newport"}], "profile": "solana"}, "", None)


@given(st.text(st.characters(), max_size=300))
def test_a_tests_folder_is_a_plain_name(test: str) -> None:
    name = file_name(test)
    assert len(name) <= 120
    assert "/" not in name
    assert not name.startswith((".", "-"))
    assert name.isascii()


def test_names_of_parametrised_tests_can_be_read() -> None:
    assert file_name("tests/test_a.py::TestB::test_c[3-x y]") == "tests-test_a.py-TestB-test_c[3-x-y]"


def test_an_answer_comes_once_and_can_be_taken_again_and_an_error_keeps_its_class() -> None:
    ticket = Ticket()
    with pytest.raises(DeviceError, match="within 0 s"):
        ticket.take(0)
    assert not ticket.done
    ticket.give({"number": 1, "value": 2})
    assert ticket.done
    assert ticket.take(0) == ticket.take(0) == {"number": 1, "value": 2}
    for kind, expected in (("ConfigurationError", ConfigurationError), ("DeviceLost", DeviceLost)):
        failed = Ticket()
        failed.give({"number": 1, "error": kind, "message": "csd-01: it died"})
        with pytest.raises(expected, match="csd-01"):
            failed.take(0)


def test_records_without_a_directory_or_with_a_torn_line_are_those_that_are_whole(tmp_path: Path) -> None:
    assert read_records(None) == read_records(tmp_path) == []
    (tmp_path / "records.jsonl").write_text('{"kind":"round"}\n{"kind":"ev')
    assert read_records(tmp_path) == [{"kind": "round"}]

"""The pytest plugin: what its marks mean, and that a project that does not use it pays next to nothing."""

import io
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import NativeEngine
from csd_emu.util.paths import Paths
from csd_emu.util.qemu_tools import find_qemu
from firmware_agent.common.errors import ConfigurationError, CsdError, DeviceError, DeviceLost, EnvironmentUnfit
from host.app.pytest_plugin.array_pool import ArrayPool, file_name
from host.app.pytest_plugin.plugin import merge, pytest_sessionstart
from host.app.python_api.array_connection import Ticket
from host.app.python_api.array_server import ArrayServer
from host.app.python_api.run_handle import SubmittedRun, read_records
from host.app.python_api.run_result import RunResult
from tests import ROOT

OLD_RUN = ROOT / "tests" / "data" / "run-0.1.0" / "federated"


def test_the_package_announces_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"csd-emu": "host.app.pytest_plugin.plugin"}


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
    assert file_name("tests/test_a.py::TestB::test_c[3-x]") == "tests-test_a.py-TestB-test_c[3-x]"
    assert file_name("tests/test_a.py::test_c[3 x]").startswith("tests-test_a.py-test_c[3-x]-")


def test_tests_of_similar_names_have_different_folders() -> None:
    names = ["test_a.py::test_b[x y]", "test_a.py::test_b[x-y]", "test_a.py::test_b[x+y]"]
    names += ["a" * 200, "a" * 201, "."]
    assert len({file_name(name) for name in names}) == len(names)


def test_an_answer_comes_once_and_can_be_taken_again_and_an_error_keeps_its_class() -> None:
    ticket = Ticket()
    with pytest.raises(DeviceError, match="within 0 s"):
        ticket.take(0)
    assert not ticket.done()
    ticket.set_result({"number": 1, "value": 2})
    assert ticket.done()
    assert ticket.take(0) == ticket.take(0) == {"number": 1, "value": 2}
    for kind, expected in (("ConfigurationError", ConfigurationError), ("DeviceLost", DeviceLost)):
        failed = Ticket()
        failed.set_result({"number": 1, "error": kind, "message": "csd-01: it died"})
        with pytest.raises(expected, match="csd-01"):
            failed.take(0)


def test_records_without_a_directory_or_with_a_torn_line_are_those_that_are_whole(tmp_path: Path) -> None:
    assert read_records(None) == read_records(tmp_path) == ([], 0)
    (tmp_path / "records.jsonl").write_text('{"kind":"round"}\n{"kind":"ev')
    assert read_records(tmp_path) == ([{"kind": "round"}], 17)


@given(texts=st.lists(st.text(max_size=5), max_size=5), cuts=st.lists(st.integers(0, 200), max_size=4))
def test_records_that_are_read_as_they_are_written_come_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], cuts: list[int]
) -> None:
    folder, read = tmp_path_factory.mktemp("run"), 0
    whole = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    seen: list[object] = []
    for cut in [*sorted(cuts), len(whole)]:
        (folder / "records.jsonl").write_bytes(whole[:cut])
        records, read = read_records(folder, read)
        seen += records
    assert seen == [{"text": text} for text in texts]


@pytest.mark.parametrize("error", [RuntimeError("planted"), SystemExit(0), AttributeError("planted")])
def test_a_crash_in_the_keeper_is_an_answer_with_its_traceback(error: BaseException) -> None:
    answers = io.BytesIO()
    keeper = ArrayServer("lab", Paths.default(), answers)
    with keeper.answering(7):
        raise error
    ticket = Ticket()
    ticket.set_result(json.loads(answers.getvalue()))
    with pytest.raises(CsdError, match=rf"(?s){type(error).__name__}.*process of the array.*test_pytest_plugin.py"):
        ticket.take(0)


@pytest.fixture
def no_qemu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PATH", str(tmp_path))
    find_qemu.cache_clear()
    yield
    find_qemu.cache_clear()


@pytest.mark.usefixtures("no_qemu")
@pytest.mark.parametrize("keys", [{"clock": "sampled"}, {"clock": "sampled", "engine": "native"}])
def test_drives_whose_steps_nobody_can_count_are_no_array(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NativeEngine, "prepare", lambda self, progress: None)  # it starts a process
    answers = io.BytesIO()
    keeper = ArrayServer("lab", Paths(tmp_path, tmp_path, tmp_path), answers)
    message = {"number": 1, "do": "open", "keys": keys | {"devices": [{"profile": "newport"}]}, "folder": str(tmp_path)}
    with keeper.answering(1):
        keeper._open(message)
    told = json.loads(answers.getvalue())
    assert told["error"] == "EnvironmentUnfit"
    assert told["message"].startswith("clock: sampled counts steps on a virtual machine, and that is not possible")
    assert keeper._open(message | {"keys": message["keys"] | {"clock": "wall", "engine": "native"}})["devices"]


@pytest.mark.usefixtures("no_qemu")
def test_a_session_whose_clock_cannot_be_had_ends_before_its_first_test() -> None:
    def start(clock: str | None) -> None:
        session: Any = SimpleNamespace(config=SimpleNamespace(getoption={"csd_clock": clock}.get))
        pytest_sessionstart(session)

    for clock in (None, "wall", "modelled"):
        start(clock)
    with pytest.raises(pytest.UsageError, match=r"qemu-\S+ is not installed.*--csd-clock modelled is what is left"):
        start("sampled")


def test_whoever_waits_for_a_round_learns_whether_it_takes_too_long_or_the_run_has_ended(tmp_path: Path) -> None:
    ticket, folder = Ticket(), tmp_path / "a-run"
    folder.mkdir()
    running = SubmittedRun(ticket, lambda: None)
    with pytest.raises(DeviceError, match="round 2 was not done within 0 s of wall time; allow more"):
        running.wait_for_round(2, timeout_seconds=0)
    (folder / "records.jsonl").write_text('{"kind":"round","round":1}\n')
    ticket.directory = folder
    running.wait_for_round(1, timeout_seconds=0)
    ticket.set_result({"number": 1, "summary": msgspec.to_builtins(RunResult(OLD_RUN).summary)})
    running.wait_for_round(1)
    with pytest.raises(DeviceError, match="ended without a round 2"):
        running.wait_for_round(2)


class DeadKeeper:
    """Of a keeper: whether it lives, and what it was asked for."""

    def __init__(self) -> None:
        self.alive, self.asked = True, list[str]()

    def ask(self, what: str, seconds: float, **values: Any) -> dict[str, Any]:
        self.asked.append(f"{what} {values}")
        return {}

    def close(self, seconds: float) -> None:
        self.asked.append("close")


class FullDisk:
    """An array of a test that did harm to it, on a machine without space."""

    runs, busy, harmed = Path("/nowhere"), False, True

    def save(self, folder: Path) -> None:
        raise OSError(28, "No space left on device")


def test_an_array_is_given_up_also_if_nothing_can_be_kept_of_it(tmp_path: Path) -> None:
    lab, keeper = ArrayPool("lab", tmp_path, tmp_path / "artifacts", "all"), DeadKeeper()
    lab._connection = keeper  # type: ignore[assignment]
    with pytest.raises(EnvironmentUnfit, match=r"artifacts of test_a cannot be kept .*No space left.*--csd-artifacts"):
        lab.release(FullDisk(), "test_a", failed=False)  # type: ignore[arg-type]
    assert keeper.asked == ["release {'end': True}"]


def test_the_drives_of_a_keeper_that_was_killed_are_ended_before_another_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, dead = ArrayPool("lab", tmp_path, None, "failed"), DeadKeeper()
    dead.alive, lab._connection = False, dead  # type: ignore[assignment]

    def start(*_: Any) -> Any:
        dead.asked.append("another begins")
        raise EnvironmentUnfit("planted")

    monkeypatch.setattr("host.app.pytest_plugin.array_pool.ArrayConnection", start)
    with pytest.raises(EnvironmentUnfit, match="planted"):
        lab.open({}, tmp_path)
    assert dead.asked == ["close", "another begins"]

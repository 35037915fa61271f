import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from csd_emu.util.process_identity import ProcessMark
from host.monitoring.run_registry import LIVE_FILE, LiveRun, announce, list_live

ADDRESS = "http://127.0.0.1:9464/metrics"


def this_run(array: str = "lab") -> LiveRun:
    return LiveRun.of_this_process(array, ADDRESS, Path("runs/one"))


def folder(arrays: Path, name: str) -> Path:
    (arrays / name).mkdir()
    return arrays / name


def test_a_run_is_listed_while_it_is_announced(tmp_path: Path) -> None:
    lab = folder(tmp_path, "lab")
    assert list_live(tmp_path) == []
    with announce(lab, this_run()):
        (run,) = list_live(tmp_path)
        assert (run.array, run.process.pid, run.address) == ("lab", os.getpid(), ADDRESS)
        assert run.run_directory == str(Path("runs/one").absolute())
        with announce(folder(tmp_path, "another"), this_run("another")):
            assert [run.array for run in list_live(tmp_path)] == ["another", "lab"]
    assert list_live(tmp_path) == []
    assert list(lab.iterdir()) == []


def test_another_process_with_the_same_number_does_not_count(tmp_path: Path) -> None:
    run = this_run()
    write(folder(tmp_path, "lab"), replace(run, process=replace(run.process, begin="1 boot")))
    assert list_live(tmp_path) == []


def live(pid: int) -> bytes:
    """The same in every process: it is in the test's name."""
    return msgspec.json.encode(LiveRun("lab", ProcessMark(pid, 0, "1 boot"), ADDRESS, "runs/one"))


def test_a_damaged_file_does_not_count(tmp_path: Path, subtests: pytest.Subtests) -> None:
    lab = folder(tmp_path, "lab")
    for text in [b"", b"{", b"[]", b'{"array": "lab"}', b"\xff", *(live(pid) for pid in (-1, 0, 1 << 40))]:
        with subtests.test(text=text):
            (lab / LIVE_FILE).write_bytes(text)
            assert list_live(tmp_path) == []


def write(lab: Path, run: LiveRun) -> None:
    (lab / LIVE_FILE).write_bytes(msgspec.json.encode(run))

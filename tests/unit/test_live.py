import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from host.live import LIVE_FILE, LiveRun, announce, list_live

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
        assert (run.array, run.pid, run.address) == ("lab", os.getpid(), ADDRESS)
        assert run.run_directory == str(Path("runs/one").absolute())
        with announce(folder(tmp_path, "another"), this_run("another")):
            assert [run.array for run in list_live(tmp_path)] == ["another", "lab"]
    assert list_live(tmp_path) == []
    assert list(lab.iterdir()) == []


def test_what_a_killed_process_left_does_not_count(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    write(folder(tmp_path, "lab"), LiveRun("lab", dead.pid, 1.0, ADDRESS, "runs/one"))
    assert list_live(tmp_path) == []


def test_another_process_with_the_same_number_does_not_count(tmp_path: Path) -> None:
    run = this_run()
    write(folder(tmp_path, "lab"), LiveRun("lab", run.pid, run.process_begin - 60.0, ADDRESS, "runs/one"))
    assert list_live(tmp_path) == []


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"array": "lab"}', b"\xff"])
def test_a_damaged_file_does_not_count(tmp_path: Path, text: bytes) -> None:
    (folder(tmp_path, "lab") / LIVE_FILE).write_bytes(text)
    assert list_live(tmp_path) == []


def write(lab: Path, run: LiveRun) -> None:
    (lab / LIVE_FILE).write_bytes(msgspec.json.encode(run))

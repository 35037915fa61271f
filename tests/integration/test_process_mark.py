"""Native drives are known by user and start: who is only called alike, or has their number later, is left alone."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from csd_emu.config.array_file import Device
from csd_emu.engines import DevicePlan, NativeEngine, native_engine
from csd_emu.engines.native_engine import PROCESS_FILE
from csd_emu.util.process_identity import ProcessMark, mark_of

SLEEPS = "import signal; print('up', flush=True); signal.pause()"


@contextlib.contextmanager
def called_alike(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a drive's command line and working directory that is none."""
    program = folder.parent / "native_launcher.py"
    program.write_text(SLEEPS)
    command = [sys.executable, "-P", str(program)]
    monkeypatch.setattr(native_engine, "_LAUNCHER", command)
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()
            process.wait()


def plan_of(arrays: Path) -> DevicePlan:
    folder = arrays / "lab/devices/csd-00"
    folder.mkdir(parents=True)
    return DevicePlan(
        "lab",
        "r",
        Device(name="csd-00", number=0, profile="newport", engine="native"),
        folder,
        folder / "s",
        folder / "i",
    )


def test_another_users_process_that_is_called_alike_is_no_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, plan = NativeEngine(tmp_path), plan_of(tmp_path)
    with called_alike(plan.folder, monkeypatch) as process:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)  # so it is another user's
        assert engine.find(plan) is None
        assert engine.list_devices("lab") == []
        assert engine.list_arrays() == []
        assert engine.sweep("lab") == []
        mark = mark_of(process.pid)
        assert mark is not None
        (plan.folder / PROCESS_FILE).write_bytes(msgspec.json.encode(mark))  # whoever wrote that down
        assert engine.find(plan) is None
        assert engine.sweep("lab") == []
        assert process.poll() is None


def test_ones_own_that_is_called_alike_is_no_drive_that_could_be_harmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep, which needs no record, ends it: nothing else has a drive's command line and folder."""
    engine, plan = NativeEngine(tmp_path), plan_of(tmp_path)
    with called_alike(plan.folder, monkeypatch) as process:
        assert engine.find(plan) is None
        assert engine.list_devices("lab") == []
        assert engine.list_arrays() == ["lab"]
        assert engine.sweep("lab") == ["csd-00"]
        process.wait(timeout=10)


def test_another_process_with_the_number_of_one_that_ended_is_none(tmp_path: Path) -> None:
    engine, plan = NativeEngine(tmp_path), plan_of(tmp_path)
    mark = mark_of(os.getpid())
    assert mark is not None
    for other in ({"begin": "1 then"}, {"uid": os.geteuid() + 1}):
        msgspec.structs.replace(mark, **other).save(plan.folder / PROCESS_FILE)
        assert engine.find(plan) is None
        assert engine.sweep("lab") == []
    mark.save(plan.folder / PROCESS_FILE)
    found = engine.find(plan)
    assert found is not None
    assert found.reference == str(os.getpid())


def test_a_mark_outlives_a_change_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = mark_of(os.getpid())
    assert mark is not None
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: 5.0)
    assert mark_of(os.getpid()) == mark


@pytest.mark.parametrize("content", [b'{"pid":-1,"uid":0,"begin":"1"}', b"", b"[" * 1000, b'{"pid": "x"}', b"x" * 5000])
def test_a_damaged_record_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / PROCESS_FILE).write_bytes(content)
    assert ProcessMark.load(tmp_path / PROCESS_FILE) is None
    assert ProcessMark.load(tmp_path / "missing") is None

"""Native drives are forks of one process that has imported the agent, and outlive it."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from csd_emu.config.array_file import ArrayConfig, Device
from csd_emu.engines import DevicePlan, NativeEngine, native_engine
from csd_emu.engines.native_engine import launched_ahead
from csd_emu.util.config_files import parse_config
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from firmware_agent.common.errors import DeviceError
from firmware_agent.common.handover import IDENTITY_FILE, SHARD_FILE
from tests.support.commands import Done, Workshop, wait_until

# Stands for the agent: says what it finds, and waits.
AGENT = """
import os, signal, sys
def main():
    print(sys.argv[1:], os.getsid(0) == os.getpid(), os.getppid(), flush=True)
    signal.pause()
"""


def plan_of(arrays: Path, number: int) -> DevicePlan:
    name = f"csd-{number:02}"
    folder = arrays / "lab/devices" / name
    folder.mkdir(parents=True)
    device = Device(name=name, number=number, profile="newport", engine="native")
    return DevicePlan("lab", "r", device, folder, folder / SHARD_FILE, folder / IDENTITY_FILE)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeEngine]:
    package = tmp_path / "packages/firmware_agent"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    engine = NativeEngine(tmp_path / "arrays")
    yield engine
    engine.sweep("lab")
    engine.close()


def said_by(plan: DevicePlan) -> str:
    wait_until(lambda: plan.console.read_bytes().endswith(b"\n"), 10.0)
    return plan.console.read_text()


def test_drives_are_forks_of_one_process_and_outlive_it(tmp_path: Path, engine: NativeEngine) -> None:
    plans = [plan_of(tmp_path / "arrays", number) for number in range(3)]
    handles = [engine.start(plan) for plan in plans]
    (launcher,) = {psutil.Process(int(handle.reference)).ppid() for handle in handles}
    assert launcher != os.getpid()
    for plan in plans:
        assert said_by(plan) == f"{['native', str(plan.folder)]} True {launcher}\n"
    engine.close()
    assert not psutil.pid_exists(launcher)
    assert all(engine.alive(handle) for handle in handles)
    assert engine.list_devices("lab") == ["csd-00", "csd-01", "csd-02"]
    another = plan_of(tmp_path / "arrays", 3)
    assert engine.alive(engine.start(another))
    assert len(engine.sweep("lab")) == 4
    assert not any(engine.alive(handle) for handle in handles)


def test_the_launcher_imports_as_soon_as_the_engine_is_prepared_and_ends_with_it(
    tmp_path: Path, engine: NativeEngine
) -> None:
    before = set(psutil.Process().children())
    engine.prepare(Silent())
    (launcher,) = set(psutil.Process().children()) - before
    handle = engine.start(plan_of(tmp_path / "arrays", 0))
    assert psutil.Process(int(handle.reference)).ppid() == launcher.pid
    engine.close()
    assert not launcher.is_running()
    assert engine.alive(handle)


def lab(**more: Any) -> ArrayConfig:
    content = {"name": "lab", "engine": "native", "devices": [{"profile": "newport"}]}
    return parse_config(content | more, ArrayConfig, "array.yaml")


def test_a_launcher_that_was_started_ahead_is_the_first_engine_s(tmp_path: Path, engine: NativeEngine) -> None:
    paths, before = Paths(tmp_path, tmp_path, tmp_path), set(psutil.Process().children())
    with launched_ahead(lab(), paths):
        (launcher,) = set(psutil.Process().children()) - before
        handle = engine.start(plan_of(tmp_path / "arrays", 0))
        assert psutil.Process(int(handle.reference)).ppid() == launcher.pid
        with launched_ahead(lab(), paths):  # the drive runs already
            assert set(psutil.Process().children()) - before == {launcher}
    assert launcher.is_running()
    engine.close()
    assert not launcher.is_running()


def test_a_launcher_that_nobody_needed_is_ended(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with launched_ahead(lab(), Paths(tmp_path, tmp_path, tmp_path)):
        (launcher,) = set(psutil.Process().children()) - before
    assert not launcher.is_running()


@pytest.mark.parametrize(
    ("changes", "array", "code"), [({"rounds": 1, "target": None}, "array.yaml", 0), ({"model": "nothing"}, "pipe", 2)]
)
def test_a_run_starts_one_launcher_and_leaves_none_though_it_is_refused(
    workshop: Workshop,
    csd_emu: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    array: str,
    code: int,
) -> None:
    """The array's file may be a pipe, which can be read once."""
    start, started = native_engine._start_launcher, list[subprocess.Popen[bytes]]()

    def keep(command: Sequence[str]) -> subprocess.Popen[bytes]:
        started.append(start(command))
        return started[-1]

    monkeypatch.setattr(native_engine, "_start_launcher", keep)
    monkeypatch.setattr(native_engine, "launched_ahead", launched_ahead)  # which other tests do without
    arguments = workshop.job_arguments(**changes)
    if array == "pipe":
        os.mkfifo(pipe := workshop.folder / array)
        threading.Thread(target=pipe.write_text, args=(workshop.array.read_text(),)).start()
        arguments[arguments.index(workshop.array)] = pipe
    done = csd_emu(*arguments)
    assert done.code == code, done.err
    (launcher,) = started
    assert launcher.returncode is not None
    workshop.assert_clean()


@pytest.mark.parametrize("more", [{"engine": "qemu"}, {"clock": "wall", "link": {"shaped": "relay", "shared": True}}])
def test_none_is_started_ahead_for_other_drives_and_other_networks(tmp_path: Path, more: dict[str, Any]) -> None:
    before = set(psutil.Process().children())
    with launched_ahead(lab(**more), Paths(tmp_path, tmp_path, tmp_path)):
        assert set(psutil.Process().children()) == before


def test_a_drive_whose_folder_is_gone_is_swept(tmp_path: Path, engine: NativeEngine) -> None:
    plan = plan_of(tmp_path / "arrays", 0)
    process = psutil.Process(int(engine.start(plan).reference))
    said_by(plan)
    shutil.rmtree(plan.folder)
    assert engine.list_arrays() == ["lab"]
    assert engine.sweep("lab") == ["csd-00"]
    assert not process.is_running()


def test_a_launcher_that_cannot_import_the_agent_says_why(
    tmp_path: Path, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_engine, "_LAUNCHER", [sys.executable, "-c", "raise SystemExit('no torch here')"])
    plan = plan_of(tmp_path / "arrays", 0)
    with pytest.raises(DeviceError, match=r"csd-00: the launcher .* has ended, .*: no torch here$"):
        engine.start(plan)


@pytest.mark.parametrize("known", [False, True])
def test_a_launcher_that_was_killed_is_replaced(tmp_path: Path, engine: NativeEngine, known: bool) -> None:
    first = engine.start(plan_of(tmp_path / "arrays", 0))
    launcher = psutil.Process(psutil.Process(int(first.reference)).ppid())
    launcher.kill()
    if known:
        wait_until(lambda: launcher.status() == psutil.STATUS_ZOMBIE)
    lost, after = (plan_of(tmp_path / "arrays", number) for number in (1, 2))
    with contextlib.suppress(DeviceError):  # whether its end is known already is the kernel's to say
        engine.start(lost)
    assert engine.alive(engine.start(after))
    assert engine.alive(first)


def test_what_cannot_be_started_is_said_and_harms_nobody(tmp_path: Path, engine: NativeEngine) -> None:
    first, gone, after = (plan_of(tmp_path / "arrays", number) for number in range(3))
    handle = engine.start(first)
    gone.console.mkdir()
    with pytest.raises((DeviceError, OSError)):
        engine.start(gone)
    assert engine.alive(engine.start(after))
    assert engine.alive(handle)
    assert said_by(first).startswith("['native'")

"""What a killed process leaves behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from csd_emu.util.process_identity import ProcessMark
from csd_lab.bench.endurance.killed_runs import KillLab
from host.fleet.array_state import is_present, present
from host.monitoring.run_registry import LIVE_FILE, LiveRun, list_live


def test_a_killed_process_is_no_longer_present(tmp_path: Path) -> None:
    path = tmp_path / "lab.present"
    code = (
        "import pathlib, sys, threading; from host.fleet.array_state import present\n"
        f"with present(pathlib.Path({str(path)!r})): print('held', flush=True); threading.Event().wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert is_present(path)
        process.kill()
    assert path.exists()
    assert not is_present(path)
    with present(path):
        assert is_present(path)


def test_what_a_killed_process_left_does_not_count(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    run = LiveRun("lab", ProcessMark(dead.pid, os.geteuid(), "1 boot"), "127.0.0.1:9101", "runs/one")
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / LIVE_FILE).write_bytes(msgspec.json.encode(run))
    assert list_live(tmp_path) == []


def test_a_host_that_is_killed_keeps_the_exit_code_that_says_so(tmp_path: Path) -> None:
    """psutil, which waits for all others, would take that of a child away, and 0 would be left."""
    with KillLab(tmp_path, 0) as lab:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        lab._started.append(child)
        assert lab._kill("host", child) == 1
        assert child.stdin is not None
        child.stdin.close()
    assert child.returncode == -signal.SIGKILL

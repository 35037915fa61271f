"""Boards over a real SSH server on loopback: facts, runs in real shells, and folders that are gone afterwards."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from csd_emu.engines.remote.shell import open_shell
from csd_emu.util.deadline import Deadline
from csd_emu.util.progress import Silent
from csd_lab.fidelity.bare_machine import COMPILER
from csd_lab.fidelity.benchmark_programs import guest_file
from csd_lab.fidelity.board_measurement import measure_board
from csd_lab.fidelity.board_programs import WantedPrograms
from csd_lab.fidelity.board_runs import parse_run
from csd_lab.fidelity.board_session import BoardSession
from firmware_agent.common.errors import DriveUnfit, DriveUnreachable, HostKeyRefused
from tests.support.boards import QEMU_USER, RUN_ARM, TestBoard
from tests.support.drives import SSHD

pytestmark = pytest.mark.skipif(not SSHD.exists(), reason="no sshd: scripts/install-system-packages --dev")
SECONDS = 30.0
PLAIN = 'shift 2; exec "$@"'


@pytest.fixture
def board(tmp_path: Path) -> Iterator[TestBoard]:
    with TestBoard(tmp_path / "board", PLAIN).running() as running:
        yield running


def wait_for(path: Path) -> str:
    deadline = Deadline(SECONDS)
    tick = threading.Event()
    while not (path.exists() and path.read_text()):
        assert not deadline.expired, f"{path} did not come"
        tick.wait(0.02)
    return path.read_text()


def ends(pid: int) -> None:
    if psutil.pid_exists(pid):
        psutil.wait_procs([psutil.Process(pid)], timeout=SECONDS)
    assert not psutil.pid_exists(pid)


def test_facts_and_runs_come_from_the_board_and_its_folder_goes(board: TestBoard) -> None:
    with BoardSession(board.entry) as session:
        facts = session.facts
        assert (facts.model, facts.a53_cores, facts.core, facts.other_cores) == ("Test Board", [1, 2], 2, 2)
        assert facts.memory_bytes == 1_024_000_000
        session.upload({"say": b"#!/bin/sh\ncat sub/text\n", "sub/text": b"hello\n"})
        first, _ = session.run("say", "./say", 2, 10)
        assert first.output == "hello"
        assert [(each.when, each.clock_khz, each.celsius) for each in first.samples] == [
            ("before", 1_400_000, 45.0),
            ("after", 1_400_000, 45.0),
        ]
        (folder,) = board.left_over
        assert folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(DriveUnfit, match=r"none failed \(exit code 127\)"):
            session.run("none", "./none", 1, 10)
    assert board.left_over == []


def test_clock_and_heat_are_sampled_while_a_program_runs(board: TestBoard) -> None:
    board.command(
        "taskset", f"echo 1000000 >{board.root}/sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq; sleep 1.5"
    )
    with BoardSession(board.entry) as session:
        (run,) = session.run("x", "x", 1, 10)
    assert [(each.when, each.clock_khz) for each in run.samples] == [
        ("before", 1_400_000),
        ("during", 1_000_000),
        ("after", 1_000_000),
    ]


def test_a_program_that_hangs_is_ended_on_the_board(board: TestBoard) -> None:
    board.command("taskset", f"echo $$ >{board.folder}/running; exec sleep 1000")
    with BoardSession(board.entry) as session, pytest.raises(DriveUnfit, match="it took too long"):
        session.run("x", "x", 3, 1)
    ends(int(wait_for(board.folder / "running")))
    assert board.left_over == []


def test_a_connection_that_breaks_ends_the_program_and_the_folder_goes(board: TestBoard) -> None:
    board.command("taskset", f"echo $$ >{board.folder}/running; exec sleep 1000")
    shells = []

    def connect(drive, deadline):  # type: ignore[no-untyped-def]
        opened = open_shell(drive, deadline)
        shells.append(opened.thing)  # type: ignore[attr-defined]
        return opened

    session = BoardSession(board.entry, connect)

    def cut() -> None:
        wait_for(board.folder / "running")
        shells[0].close()

    with session:
        cutter = threading.Thread(target=cut)
        cutter.start()
        with pytest.raises(DriveUnreachable, match="broke"):
            session.run("x", "x", 1, 100)
        cutter.join()
    assert len(shells) == 2
    assert board.left_over == []
    ends(int((board.folder / "running").read_text()))


def test_an_unknown_host_key_is_refused(board: TestBoard) -> None:
    board.known_hosts.write_text("")
    with pytest.raises(HostKeyRefused, match="is not known"), BoardSession(board.entry):
        pass
    assert board.known_hosts.read_text() == ""


def test_this_machine_is_no_board(board: TestBoard) -> None:
    board.command("uname", 'case $1 in -m) echo x86_64;; *) exec /bin/uname "$@";; esac')
    with pytest.raises(DriveUnfit, match="on x86_64"), BoardSession(board.entry):
        pass
    assert board.left_over == []


@pytest.mark.parametrize("noise", ["\0\xff" * 1000, "processor : -3\nCPU part : zz\n" * 1000, "x" * 2_000_000])
def test_nonsense_in_its_files_is_a_refusal_or_not_known(board: TestBoard, noise: str) -> None:
    board.write("proc/cpuinfo", noise)
    board.write("proc/device-tree/model", noise)
    with pytest.raises(DriveUnfit, match="none of its 0 cores"), BoardSession(board.entry):
        pass
    board.write("proc/cpuinfo", "processor : 2\nCPU implementer : 0x41\nCPU part : 0xd03\n")
    board.write("sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "-1400000\n")
    board.write("sys/class/thermal/thermal_zone0/temp", noise)
    with BoardSession(board.entry) as session:
        assert len(session.facts.model) <= 80
        sample = session.sample()
    assert (sample.clock_khz, sample.celsius) == (None, None)


@pytest.mark.parametrize("shell", [["dash"], ["busybox", "sh"]], ids=["dash", "busybox"])
def test_all_shells_run_alike(shell: list[str], tmp_path: Path) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"there is no {shell[0]}")
    (tmp_path / "board_run.sh").write_bytes(guest_file("board_run.sh"))
    (tmp_path / "taskset").write_text("#!/bin/sh\nprintf 'no end of line'; printf 'a\\nb' >&2\n")
    (tmp_path / "taskset").chmod(0o755)
    done = subprocess.run(
        [*shell, "board_run.sh", "0", "2", "5", "x"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "CSD_SYSTEM_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stderr == ""
    assert [run.output for run in parse_run("x", done.stdout, 2)] == ["no end of line"] * 2
    assert not (tmp_path / "pid").exists()


@pytest.mark.skipif(QEMU_USER is None or shutil.which(COMPILER) is None, reason="no qemu-user or no compiler for ARM")
def test_the_loops_run_on_64_bit_arm(board: TestBoard) -> None:
    """By QEMU's user mode: the program and its system calls are the board's, its times are this machine's."""
    board.command("taskset", RUN_ARM)
    with BoardSession(board.entry) as session:
        found = measure_board(session, WantedPrograms([], None, {}, "", None, ""), 2, Silent(), lambda seconds: None)
    assert len(found.loops) == 15
    assert all(time > 0 for figure in found.loops.values() for time in figure.values)
    assert 100 < found.megahertz < 5000
    assert board.left_over == []

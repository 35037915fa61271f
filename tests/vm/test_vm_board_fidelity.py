"""`csd-emu fidelity --on` as a user runs it, and what it runs on a board under a real kernel for 64-bit ARM."""

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.image import ImageStore
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_emu.util.yaml_files import parse_yaml
from csd_lab.fidelity import board_fidelity, board_measurement, board_report
from csd_lab.fidelity.benchmark_machine import run_program
from csd_lab.fidelity.benchmark_programs import guest_file
from csd_lab.fidelity.board_facts import parse_facts
from csd_lab.fidelity.board_measurement import figures_of
from csd_lab.fidelity.board_programs import ADDITIONS, BoardProgram, WantedPrograms, choose_programs
from csd_lab.fidelity.board_runs import parse_run
from csd_lab.fidelity.published_boards import PublishedBoards, load_published
from host.config.calibration_request import read_request, read_spec
from tests.support.boards import TestBoard, stand_in
from tests.support.commands import Done, in_process

pytestmark = [pytest.mark.vm, pytest.mark.long]
SECONDS = 60.0
# Each iteration of the loops over lines has two loads or stores or four, an addition or two, a comparison and a branch.
INSTRUCTIONS = {"read": 5, "write": 5, "copy": 8}
ROCK64 = load_published().memory[0]


@pytest.fixture
def one_published(monkeypatch: pytest.MonkeyPatch) -> PublishedBoards:
    """Of published boards the first whose memory was measured: each takes seconds."""
    monkeypatch.delenv("CSD_NCNN", raising=False)
    monkeypatch.delenv("CSD_COREMARK", raising=False)
    published = load_published()
    published = msgspec.structs.replace(published, memory=published.memory[:1])
    for module in (board_fidelity, board_report):
        monkeypatch.setattr(module, "load_published", lambda: published)
    monkeypatch.setattr(board_measurement, "COOL_SECONDS", 0.01)
    return published


@pytest.fixture
def board(tmp_path: Path) -> Iterator[TestBoard]:
    with TestBoard(tmp_path / "board", stand_in(ROCK64)).running() as running:
        yield running


@pytest.fixture
def fidelity(
    board: TestBoard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    def run(*arguments: str | Path) -> Done:
        given = ("fidelity", "--on", board.target, "--ssh-config", board.ssh_config, "--repetitions", "3")
        return in_process(capsys, monkeypatch, *given, *arguments)

    return run


def test_a_board_stands_beside_published_ones_and_is_saved_in_their_form(
    board: TestBoard, fidelity: Callable[..., Done], one_published: PublishedBoards, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.yaml"
    done = fidelity("--json", "--save", saved)
    assert done.code == 0, done.err
    report = done.json("fidelity-boards")
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in report["figures"]:
        rows.setdefault(row["board"], []).append(row)
    assert list(rows) == [ROCK64.board, "Test Board"]
    for published, measured in zip(*rows.values(), strict=True):
        assert published["name"] == measured["name"]
        assert measured["predicted"] == pytest.approx(published["predicted"], rel=1e-6)
        assert measured["published"] == pytest.approx(published["published"], rel=0.01)
        assert (published["spread"], measured["spread"], measured["throttled"]) == (None, 0.0, "")
    assert report["measured"]["facts"]["a53_cores"] == [1, 2]
    assert report["measured"]["measurement"]["megahertz"] == pytest.approx(ROCK64.clock_megahertz, rel=1e-3)
    (entry,) = msgspec.convert(parse_yaml(saved.read_text(), "saved"), PublishedBoards).memory
    assert (entry.core, entry.l2_kibibytes) == (ROCK64.core, ROCK64.l2_kibibytes)
    assert board.left_over == []

    done = fidelity()
    assert "Test Board: predicted (counted, cycles) and measured (wall)" in done.out
    assert "Test Board: 2 Cortex-A53 and 2 others, 1.0 GB of memory" in done.out
    assert "throttled" not in done.out


def test_a_board_that_throttles_is_noticed_marked_and_left_out(
    board: TestBoard, fidelity: Callable[..., Done], one_published: PublishedBoards, tmp_path: Path
) -> None:
    """The clock falls while the stand-in runs for the second time, and stays so."""
    clock = f"{board.root}/sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq"
    # It ends after the clock was looked at.
    fall = f"[ ! -f {board.folder}/ran ] || echo 1000000 >{clock}; : >{board.folder}/ran; sleep 1.5"
    board.command("taskset", stand_in(ROCK64, fall))
    saved = tmp_path / "saved.yaml"
    done = fidelity("--json", "--save", saved)
    assert done.code == 0, done.err
    report = done.json("fidelity-boards")
    measured = [row for row in report["figures"] if row["board"] == "Test Board"]
    assert {row["throttled"] for row in measured} == {"its clock fell from 1400 to 1000 MHz"}
    assert not any(row["judged"] for row in measured)
    notes = " ".join(report["measured"]["measurement"]["notes"])
    assert "clock fell from 1400 to 1000 MHz; measured again after 0 s, 16 of 16 figures are marked" in notes
    assert f"{saved} was not written" in notes
    assert not saved.exists()

    board.set_clock(1_400_000)
    (board.folder / "ran").unlink()
    done = fidelity()
    assert done.code == 0, done.err
    assert done.out.count("throttled") >= len(measured)
    assert "left out of the medians" in done.out


def test_ctrl_c_ends_the_program_and_removes_the_folder(board: TestBoard) -> None:
    board.command("taskset", f'[ "$3" != true ] || exit 0; echo $$ >{board.folder}/running; exec sleep 1000')
    command = [sys.executable, "-m", "host", "fidelity", "--on", board.target, "--ssh-config", str(board.ssh_config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline, tick = Deadline(SECONDS), threading.Event()
        while not (board.folder / "running").exists():
            assert process.poll() is None, process.communicate()
            assert not deadline.expired
            tick.wait(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, errors
    assert board.left_over == []
    running = Path("/proc", (board.folder / "running").read_text().strip(), "cmdline")
    assert not running.exists() or b"sleep" not in running.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--save", "/no/such/folder/x.yaml"], "/no/such/folder/x.yaml cannot be written"),
        (["--coremark", "/no/such/coremark"], "/no/such/coremark cannot be read"),
        (["--inventory", "drives.yaml"], "--inventory: for a drive alone"),
        (["left", "--inventory", "drives.yaml"], "one of them at a time"),
    ],
)
def test_bad_input_leaves_the_board_alone(
    board: TestBoard, fidelity: Callable[..., Done], one_published: PublishedBoards, arguments: list[str], words: str
) -> None:
    done = fidelity(*arguments)
    assert done.code == 2
    assert words in done.err.replace("\n", " ")
    assert board.left_over == []


def test_programs_and_scripts_run_on_a_real_kernel_for_arm() -> None:
    """On a machine whose clock counts instructions, loops take their instructions, and memory costs nothing."""
    paths = Paths.default()
    image, plugin = ImageStore(paths.images).ensure(Silent()), CyclePlugin.build(paths.cycles, CoreParameters())
    training = read_request(read_spec("digits_cnn"), None, "1,8", None, None, 0)
    scripts = {name: guest_file(name) for name in ("board_facts.sh", "board_run.sh")}
    facts = parse_facts("vm", run_program(image, plugin, "sh board_facts.sh", scripts, 300.0)[1].replace("\r", ""))
    assert facts.a53_cores == [0]
    assert (facts.python, facts.torch_problem) == ("cp311", "")
    programs, notes = choose_programs(facts, WantedPrograms([], None, {}, "", training, facts.torch))
    assert notes == []
    files = scripts | {path: content for each in programs for path, content in each.files.items()}
    runs = [f"echo BEGIN && sh board_run.sh 0 2 {each.seconds:.0f} {each.command}" for each in programs]
    _, shown = run_program(image, plugin, " && ".join(runs), files, 590.0)
    written = shown.replace("\r", "").split("BEGIN\n")[1:]

    def measured(program: BoardProgram, text: str) -> dict[str, list[float]]:
        found = figures_of("vm", parse_run(program.name, text.partition("BENCHMARK")[0], 2), program.read)
        return {name: figure.values for name, figure in found.items()}

    loops, steps = itertools.starmap(measured, zip(programs, written, strict=True))
    assert loops["clock"] == pytest.approx([ADDITIONS] * 2, rel=0.02)
    for name, instructions in INSTRUCTIONS.items():
        assert loops[name] == pytest.approx([(8 << 20) / 64 * instructions] * 2, rel=0.02)
    assert loops["read in 32768 KiB"] == pytest.approx(loops["read in 16 KiB"], rel=0.02)
    assert list(steps) == ["1", "8"]
    assert all(0 < one < eight for one, eight in zip(steps["1"], steps["8"], strict=True))

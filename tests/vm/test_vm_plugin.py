"""The core model inside a bare QEMU that runs a program of a few words."""

import struct
import subprocess
from pathlib import Path

import pytest

from csd_emu.cycles.mark_file import read_marks
from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.util.qemu_tools import find_qemu

pytestmark = pytest.mark.vm

TIMES = 1000
ON, PHASE, OFF = (0xD2800000 | (0xC5D0 + number) << 5 | 31 for number in (15, 1, 14))
LOOP = [0xD2800000 | TIMES << 5 | 2, 0xF1000442, 0x54FFFFE1]  # movz x2, #1000; subs x2, x2, #1; b.ne .-4
POWER_OFF = [0x52800100, 0x72B08000, 0xD4000002]  # movz w0, #8; movk w0, #0x8400, lsl 16; hvc #0
BASE = 0x40200000  # the machine puts its device tree before


def run_program(folder: Path, words: list[int], options: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.bin"
    program.write_bytes(struct.pack(f"<{len(words)}I", *words))
    machine = ["-machine", "virt", "-cpu", "cortex-a53", "-display", "none", "-serial", "none", "-monitor", "none"]
    loader = f"loader,file={program},addr={BASE:#x},cpu-num=0,force-raw=on"
    command = [find_qemu().emulator, *machine, "-icount", "shift=0", "-device", loader, "-plugin", options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_instructions_are_counted_exactly_and_cycles_between_marks(tmp_path: Path) -> None:
    plugin = CyclePlugin.build(tmp_path / "built", CoreParameters())
    marks = tmp_path / "marks.jsonl"
    words = [*LOOP, ON, *LOOP, PHASE, *LOOP, OFF, *LOOP, PHASE, *POWER_OFF]
    assert run_program(tmp_path, words, plugin.options(marks)).returncode == 0
    on, first, off, last = read_marks(marks)
    assert [mark.mark for mark in (on, first, off, last)] == [15, 1, 14, 1]
    assert on.cycles == 0  # nothing is modelled before
    for before, after in ((on, first), (first, off), (off, last)):
        assert after.instructions - before.instructions == pytest.approx(1 + 2 * TIMES, abs=2)
    for before, after in ((on, first), (first, off)):
        assert after.detail_instructions - before.detail_instructions == pytest.approx(1 + 2 * TIMES, abs=8)
        assert TIMES <= after.cycles - before.cycles <= 2.5 * TIMES  # one taken branch each time
    assert last.cycles == off.cycles


@pytest.mark.parametrize("wrong", ["l2_kibibytes=33", "clock_megahertz=x", "speed=9", "out=/nonexistent/marks"])
def test_options_that_cannot_be_are_refused(tmp_path: Path, wrong: str) -> None:
    plugin = CyclePlugin.build(tmp_path / "built", CoreParameters())
    done = run_program(tmp_path, POWER_OFF, f"{plugin.options(tmp_path / 'marks')},{wrong}")
    assert done.returncode != 0
    assert "core model: " in done.stderr


def test_a_plugin_is_built_once_and_anew_for_other_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = CyclePlugin.build(tmp_path, CoreParameters()).library
    stamp = built.stat().st_mtime_ns
    assert CyclePlugin.build(tmp_path, CoreParameters(line_fills=2)).library == built
    assert built.stat().st_mtime_ns == stamp
    assert [path.name for path in tmp_path.iterdir()] == [built.name]
    monkeypatch.setattr("csd_emu.cycles.plugin_build._FLAGS", ("-std=c11", "-O1", "-fPIC", "-fvisibility=hidden"))
    assert CyclePlugin.build(tmp_path, CoreParameters()).library != built

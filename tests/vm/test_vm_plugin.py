"""The core model inside a bare QEMU that runs a program of a few words."""

import itertools
import json
import struct
import subprocess
from pathlib import Path

import pytest

from csd_emu.cycles.mark_file import MAX_MARKS, read_marks
from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.util.qemu_tools import find_qemu
from firmware_agent.common.errors import CalibrationError
from tests.support.core_model import ModelCore, build_model

pytestmark = pytest.mark.vm

TIMES = 1000
ON, PHASE, OFF = (0xD2800000 | (0xC5D0 + number) << 5 | 31 for number in (15, 1, 14))
LOOP = [0xD2800000 | TIMES << 5 | 2, 0xF1000442, 0x54FFFFE1]  # movz x2, #1000; subs x2, x2, #1; b.ne .-4
POWER_OFF = [0x52800100, 0x72B08000, 0xD4000002]  # movz w0, #8; movk w0, #0x8400, lsl 16; hvc #0
BASE = 0x40200000  # the machine puts its device tree before


def run_program(folder: Path, words: list[int], options: str, cores: int = 1) -> subprocess.CompletedProcess[str]:
    program = folder / "program.bin"
    program.write_bytes(struct.pack(f"<{len(words)}I", *words))
    machine = ["-machine", "virt", "-cpu", "cortex-a53", "-display", "none", "-serial", "none", "-monitor", "none"]
    loader = f"loader,file={program},addr={BASE:#x},cpu-num=0,force-raw=on"
    command = [
        find_qemu().emulator,
        *machine,
        "-icount",
        "shift=0",
        "-smp",
        str(cores),
        "-device",
        loader,
        "-plugin",
        options,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_instructions_are_counted_exactly_and_cycles_as_the_model_does(tmp_path: Path) -> None:
    begin = [0xD2A80601, 0xD2800000 | TIMES << 5 | 2, ON, 0x14000001]  # movz x1, #0x4030, lsl 16; movz x2; b .+4
    # ldr x3, [x1]; add x3, x3, #1; str x3, [x1], #8; subs x2, x2, #1; b.ne .-16
    memory = [0xF9400023, 0x91000463, 0xF8008423, 0xF1000442, 0x54FFFF81]
    words = [*begin, *memory, PHASE, *LOOP, OFF, *LOOP, PHASE, *POWER_OFF]
    plugin = CyclePlugin.build(tmp_path / "built", CoreParameters())
    assert run_program(tmp_path, words, plugin.options(tmp_path / "marks")).returncode == 0
    marks = read_marks(tmp_path / "marks")
    assert [mark.mark for mark in marks] == [15, 1, 14, 1]
    assert [mark.instructions for mark in marks] == list(itertools.accumulate((3, 2 + 5 * TIMES, *[2 + 2 * TIMES] * 2)))
    assert [mark.detail_instructions for mark in marks] == [0, 1 + 5 * TIMES, *[3 + 7 * TIMES] * 2]
    with ModelCore(build_model(tmp_path)) as core:
        start = BASE + 4 * len(begin)
        end = start + 4 * len(memory)
        for number in range(TIMES):
            address = 0x40300000 + 8 * number
            core.run(memory, [address, 0, address, 0, 0], start if number < TIMES - 1 else end, start)
        first = core.run([PHASE], (), end + 4, end)
        core.run(LOOP, (), end + 8, end + 4)
        for _ in range(TIMES - 2):
            core.run(LOOP[1:], (), end + 8, end + 8)
        core.run(LOOP[1:], (), end + 16, end + 8)
        second = core.run([OFF], (), end + 20, end + 16)
        assert [mark.cycles for mark in marks] == [0, first, second, second]
        assert marks[-1].dram_bytes == core.counters.dram_bytes >= 8 * TIMES


def test_a_mark_tells_of_every_core_first_of_the_one_that_executed_it(tmp_path: Path) -> None:
    # movz w0, #3; movk w0, #0xC400, lsl 16; movz x1, #1; adr x2, second; hvc #0: starts core 1
    start = [0x52800060, 0x72B88000, 0xD2800021, 0x10000102, 0xD4000002]
    take_turns = [0xD503203F] * 2  # yield
    first = [ON, *start, *take_turns, PHASE, *POWER_OFF]
    second = [*LOOP, 0xD503207F, 0x17FFFFFF]  # wfi; b .-4
    plugin = CyclePlugin.build(tmp_path / "built", CoreParameters())
    assert run_program(tmp_path, [*first, *second], plugin.options(tmp_path / "marks"), cores=2).returncode == 0
    marks = read_marks(tmp_path / "marks")
    assert [(mark.mark, mark.core) for mark in marks] == [(15, 0), (15, 1), (1, 0), (1, 1)]
    assert [mark.instructions for mark in marks[:3]] == [1, 0, 9]
    assert 1 + 2 * TIMES <= marks[3].detail_instructions <= marks[3].instructions <= 3 + 2 * TIMES


def test_a_guest_may_execute_any_marks_as_often_as_it_likes(tmp_path: Path) -> None:
    plugin = CyclePlugin.build(tmp_path / "built", CoreParameters())
    switches = [0xD2800000 | 300 << 5 | 2, ON, OFF, 0xF1000442, 0x54FFFFA1]  # movz x2; subs x2, x2, #1; b.ne .-12
    floods = [0xD2800002 | 0x1170 << 5, 0xF2A00022, PHASE, 0xF1000442, 0x54FFFFC1]  # 70,000 times
    assert run_program(tmp_path, [*switches, *floods, *POWER_OFF], plugin.options(tmp_path / "marks")).returncode == 0
    lines = (tmp_path / "marks").read_bytes().splitlines()
    assert len(lines) == MAX_MARKS
    assert [json.loads(line)["mark"] for line in lines[:601]] == [15, 14] * 300 + [1]
    with pytest.raises(CalibrationError, match="more marks"):
        read_marks(tmp_path / "marks")


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

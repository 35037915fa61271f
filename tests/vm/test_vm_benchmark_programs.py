"""Programs that are compared with boards, under the core model in real machines."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.image import ImageStore
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.fidelity.bare_machine import COMPILER
from csd_lab.fidelity.benchmark_machine import run_program
from csd_lab.fidelity.benchmark_programs import measure_coremark, measure_memory, measure_strided_reads, ncnn_files
from firmware_agent.common.errors import CalibrationError, ConfigurationError, EnvironmentUnfit

pytestmark = pytest.mark.vm
USUAL = CoreParameters()


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> CyclePlugin:
    return CyclePlugin.build(tmp_path_factory.mktemp("built"), USUAL)


def test_loops_over_memory_find_the_parameters_that_the_core_has(plugin: CyclePlugin) -> None:
    assert shutil.which(COMPILER), "scripts/install-system-packages --dev installs it"
    usual = measure_memory(plugin, 8192)
    assert usual.megabytes_per_second["write"] == pytest.approx(USUAL.dram_megabytes_per_second, rel=0.1)
    assert usual.megabytes_per_second["copy"] < usual.megabytes_per_second["read"] <= 4000
    reads = usual.random_read_nanoseconds
    assert reads[16] == reads[32] == pytest.approx(0, abs=0.5)
    assert reads[256] == pytest.approx(USUAL.l2_cycles, rel=0.25)
    assert reads[8192] == pytest.approx(USUAL.dram_nanoseconds + USUAL.l2_cycles + 22, rel=0.1)
    assert list(reads.values()) == sorted(reads.values())
    slow = dataclasses.replace(plugin, parameters=CoreParameters(dram_nanoseconds=220, dram_megabytes_per_second=1000))
    slower = measure_memory(slow, 8192)
    assert slower.megabytes_per_second["write"] == pytest.approx(1000, rel=0.1)
    assert slower.random_read_nanoseconds[8192] > reads[8192] + 90


def test_strided_reads_wait_for_each_other_unless_they_are_prefetched(plugin: CyclePlugin) -> None:
    without = dataclasses.replace(plugin, parameters=CoreParameters(prefetch_streams=0))
    usual, waiting = measure_strided_reads(plugin, 2048), measure_strided_reads(without, 2048)
    assert list(waiting) == [16, 32, 64, 128, 256, 512, 1024, 2048]
    assert [waiting[16], waiting[32], usual[16]] == pytest.approx([3, 3, 3], abs=0.05)  # an address from L1
    assert waiting[256] == pytest.approx(3 + USUAL.l2_cycles, rel=0.1)
    assert waiting[2048] == pytest.approx(3 + USUAL.l2_cycles + USUAL.dram_nanoseconds, rel=0.1)
    assert usual[256] < waiting[256] / 2
    assert usual[2048] < waiting[2048] / 2


def test_without_a_compiler_it_says_what_to_install(plugin: CyclePlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentUnfit, match="install gcc-aarch64-linux-gnu"):
        measure_memory(plugin, 64)


def test_a_program_runs_alone_in_the_image_and_a_failing_one_is_shown(plugin: CyclePlugin, tmp_path: Path) -> None:
    image = ImageStore(Paths.default().images).ensure(Silent())
    before = image.disk.stat().st_mtime_ns
    loop = tmp_path / "loop"  # as CoreMark: its fourth argument is how often
    loop.write_text("#!/bin/sh\necho CoreMark; n=$4; while [ $n -gt 0 ]; do n=$((n - 1)); done\n", encoding="utf-8")
    per_megacycle = measure_coremark(image, plugin, [loop])
    assert 10 < per_megacycle < 1000  # a turn of the loop takes some ten thousand cycles
    loop.write_text("#!/bin/sh\necho another program\n", encoding="utf-8")
    with pytest.raises(CalibrationError, match="is no CoreMark"):
        measure_coremark(image, plugin, [loop])
    with pytest.raises(CalibrationError, match="no such thing"):
        run_program(image, plugin, "echo no such thing; false", {}, 300.0)
    assert image.disk.stat().st_mtime_ns == before


def test_a_folder_without_networks_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"net\.param cannot be read"):
        ncnn_files(["net"], tmp_path, "1.0.1")
    (tmp_path / "net.param").write_text("7767517\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"pip download ncnn==1\.0\.1"):
        ncnn_files(["net"], tmp_path, "1.0.1")
    (tmp_path / "ncnn-1.0.1-cp311-cp311-linux_aarch64.whl").write_bytes(b"not a package")
    with pytest.raises(ConfigurationError, match="download it again"):
        ncnn_files(["net"], tmp_path, "1.0.1")

from pathlib import Path

import pytest

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin, build_library
from csd_emu.util.qemu_tools import QemuTools
from firmware_agent.common.errors import EnvironmentUnfit


@pytest.mark.parametrize("version", ["QEMU emulator version 9.2.4", "QEMU emulator version 10.1.0", "another emulator"])
def test_a_qemu_that_was_not_tried_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    tools = QemuTools("qemu-system-aarch64", version, "virt-10.0", "qemu-img")
    monkeypatch.setattr("csd_emu.cycles.plugin_build.find_qemu", lambda: tools)
    with pytest.raises(EnvironmentUnfit, match=r"tried with QEMU 10\.0 alone.*install that release"):
        CyclePlugin.build(tmp_path, CoreParameters())


def test_without_a_compiler_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonexistent/cc")
    with pytest.raises(EnvironmentUnfit, match="install gcc, or name another with CC"):
        build_library(tmp_path / "built")
    assert not (tmp_path / "built").exists()


def test_commas_of_paths_are_doubled() -> None:
    options = CyclePlugin(Path("/a,b/plugin.so"), CoreParameters(line_fills=2)).options(Path("/marks,1"))
    assert options.startswith("file=/a,,b/plugin.so,out=/marks,,1,clock_megahertz=1000,")
    assert ",line_fills=2," in options

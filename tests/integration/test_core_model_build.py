"""Building the core model where something is wrong with compiler or QEMU, and at the same time as another process."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin, build_library
from csd_emu.util.qemu_tools import QemuTools
from firmware_agent.common.errors import EnvironmentUnfit


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("compiler", "told"),
    [
        ("exit 1", "could not say its version; .* with CC"),
        ('[ "$1" = --version ] || { echo no space >&2; exit 1; }', "could not build the core model.*no space"),
        ('[ "$1" = --version ] || exec sleep 60', "could not build the core model.*timed out"),
    ],
)
def test_a_compiler_that_fails_or_hangs_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, told: str
) -> None:
    monkeypatch.setenv("CC", script(tmp_path / "cc", compiler))
    monkeypatch.setattr("csd_emu.cycles.plugin_build._MOST_SECONDS", 2.0)
    with pytest.raises(EnvironmentUnfit, match=told):
        build_library(tmp_path / "built")
    assert not (tmp_path / "built").exists() or not list((tmp_path / "built").iterdir())


@pytest.mark.skipif(shutil.which("cc") is None, reason="the model is built with the machine's compiler")
def test_a_qemu_that_refuses_the_plugin_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qemu = script(tmp_path / "qemu", "echo plugins are off >&2; exit 1")
    tools = QemuTools(qemu, "QEMU emulator version 10.0.2", "virt-10.0", "qemu-img")
    monkeypatch.setattr("csd_emu.cycles.plugin_build.find_qemu", lambda: tools)
    with pytest.raises(EnvironmentUnfit, match=r"load the core model.* a QEMU with plugins.*: plugins are off"):
        CyclePlugin.build(tmp_path / "built", CoreParameters())


@pytest.mark.skipif(shutil.which("cc") is None, reason="the model is built with the machine's compiler")
def test_processes_that_build_at_once_get_the_same_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(build_library, [tmp_path] * 4))
    assert len(set(built)) == 1
    assert list(tmp_path.iterdir()) == built[:1]

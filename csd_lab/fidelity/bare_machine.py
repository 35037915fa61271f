"""A bare emulated core that runs one small C program under the core model: no system, nothing beside it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from csd_emu.cycles.mark_file import CycleMark, read_marks
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.util.qemu_tools import find_qemu
from firmware_agent.common.errors import CalibrationError, EnvironmentUnfit

COMPILER = "aarch64-linux-gnu-gcc"
_FLAGS = ("-O2", "-mcpu=cortex-a53", "-ffreestanding", "-nostdlib", "-static", "-Wall", "-Wextra", "-Werror")
# The machine's memory begins at 1 GiB, with its device tree.
_LINKER = "-Wl,-Ttext=0x40200000,-N,--no-warn-rwx-segments"
_MACHINE = ("-machine", "virt", "-cpu", "cortex-a53", "-m", "512M", "-icount", "shift=0")
_NOTHING = ("-display", "none", "-serial", "none", "-monitor", "none")
_MOST_SECONDS = 600.0


def run_bare(plugin: CyclePlugin, source: str, constants: Mapping[str, int]) -> list[CycleMark]:
    """Compile a program of `csd_lab/fidelity/guest`, run it, and return the marks that it executed.

    Args:
        plugin: the core model.
        source: name of the file.
        constants: macros that it needs.

    Raises:
        EnvironmentUnfit: there is no compiler for ARM, or no QEMU.
        CalibrationError: it does not compile, or does not end.
    """
    with tempfile.TemporaryDirectory(prefix="csd-loops-") as name:
        program, marks = Path(name, "program"), Path(name, "marks")
        program.write_bytes(compile_guest(source, constants, _LINKER))
        options = ["-kernel", str(program), "-plugin", plugin.options(marks)]
        _run([find_qemu().emulator, *_MACHINE, *_NOTHING, *options])
        return read_marks(marks)


def compile_guest(source: str, constants: Mapping[str, int], *options: str) -> bytes:
    """Return the static program that a file of `csd_lab/fidelity/guest` becomes; it has no C library.

    Args:
        source: name of the file.
        constants: macros that it needs.
        options: of the compiler, beside those of every such program.

    Raises:
        EnvironmentUnfit: there is no compiler for ARM.
        CalibrationError: it does not compile.
    """
    require_compiler()
    macros = [f"-D{key}={value}" for key, value in constants.items()]
    with tempfile.TemporaryDirectory(prefix="csd-compile-") as name:
        program = Path(name, "program")
        with resources.as_file(resources.files("csd_lab.fidelity") / "guest" / source) as path:
            _run([COMPILER, *_FLAGS, *macros, *options, "-o", str(program), str(path)])
        return program.read_bytes()


def require_compiler() -> None:
    """Return if there is a compiler for ARM.

    Raises:
        EnvironmentUnfit: there is none.
    """
    if shutil.which(COMPILER) is None:
        raise EnvironmentUnfit(
            f"{COMPILER} was not found, which compiles the loops that are compared; install gcc-aarch64-linux-gnu"
        )


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()[-1500:]
        raise CalibrationError(f"{command[0]} failed on a loop over memory: {said}") from error

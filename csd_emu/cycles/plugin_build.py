"""The core model as a plugin for this machine's QEMU: built once with the machine's compiler, found by its hash."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from csd_emu.cycles.parameters import CoreParameters
from csd_emu.util.qemu_tools import find_qemu
from firmware_agent.common.atomic_files import make_folder
from firmware_agent.common.errors import EnvironmentUnfit

_FOLDER = Path(__file__).parent
SOURCES = (_FOLDER / "plugin.c", *sorted((_FOLDER / "core_model").glob("*.c")))
_HEADERS = (_FOLDER / "qemu_api.h", *sorted((_FOLDER / "core_model").glob("*.h")))
# The plugin's interface differs from release to release; others are refused until they were tried.
TRIED_QEMU = ("10.0",)
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
# What is started here ends within; a compiler on a busy machine takes longest.
_MOST_SECONDS = 120.0


@dataclass(frozen=True)
class CyclePlugin:
    """A built plugin, and the core that it models.

    Attributes:
        library: the shared object; anybody may read it.
        parameters: of the core.
    """

    library: Path
    parameters: CoreParameters

    @classmethod
    def build(cls, folder: Path, parameters: CoreParameters) -> CyclePlugin:
        """Return the plugin for this machine's QEMU; it is built if `folder` has none of these sources.

        Raises:
            EnvironmentUnfit: there is no compiler, it failed, or QEMU does not take the plugin, or is of a release that
                was never tried.
        """
        qemu = find_qemu()
        if (found := re.search(r"version (\d+\.\d+)", qemu.version)) is None or found[1] not in TRIED_QEMU:
            raise EnvironmentUnfit(
                f"the core model was tried with QEMU {', '.join(TRIED_QEMU)} alone, and this is {qemu.version!r}; "
                "install that release"
            )
        plugin = cls(build_library(folder), parameters)
        _run(
            [
                *(qemu.emulator, "-machine", "none", "-nodefaults", "-display", "none", "-monitor", "stdio"),
                *("-plugin", plugin.options(Path(os.devnull))),
            ],
            *("quit\n", "load the core model", "install a QEMU with plugins, such as Debian's"),
        )
        return plugin

    def options(self, marks: Path) -> str:
        """Return the value of QEMU's ``-plugin``; counters go to the file `marks`."""
        return f"file={_escaped(self.library)},out={_escaped(marks)},{self.parameters.options()}"


def build_library(folder: Path) -> Path:
    """Return the shared object of the core model, built from `SOURCES` if `folder` has it not yet.

    Raises:
        EnvironmentUnfit: there is no compiler, or it failed.
    """
    if (compiler := shutil.which(os.environ.get("CC", "cc"))) is None:
        raise EnvironmentUnfit(
            "no C compiler was found, with which the core model is built; install gcc, or name another with CC"
        )
    if (library := folder / f"core-model-{_digest(compiler)}.so").is_file():
        return library
    make_folder(folder, 0o755)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as build:
        made = Path(build, library.name)
        _run([compiler, *_FLAGS, "-shared", "-o", str(made), *map(str, SOURCES)], "", "build the core model")
        made.chmod(0o644)
        made.replace(library)
    return library


def _run(command: list[str], text: str, purpose: str, remedy: str = "repair it, or name another with CC") -> str:
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", timeout=_MOST_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()[-2000:]
        raise EnvironmentUnfit(f"{command[0]} could not {purpose}; {remedy}: {said}") from error


def _digest(compiler: str) -> str:
    built_by = " ".join(_FLAGS) + _run([compiler, "--version"], "", "say its version")
    files = (path.name.encode() + b"\0" + path.read_bytes() for path in SOURCES + _HEADERS)
    return hashlib.sha256(built_by.encode() + b"".join(files)).hexdigest()[:16]


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")

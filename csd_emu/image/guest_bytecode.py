"""Bytecode for the guest's Python, made on the build machine, so that no emulated core compiles anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from csd_emu.image.image_recipe import ImageRecipe
from csd_emu.image.image_rootfs import make_root, unpack_package
from csd_emu.image.packages import PackageCache
from csd_emu.image.runner import Runner
from firmware_agent.common.errors import ImageError

_SOURCES_WORTH_A_PROCESS = 50
_START_SECONDS = 30.0


@dataclass(frozen=True)
class BuildPython:
    """A Python of the guest's version that runs on the build machine."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def find_python(version: str) -> BuildPython | None:
    """Return an installed CPython of `version`, ``major.minor``; None if there is none."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version and sys.implementation.name == "cpython":
        return BuildPython((sys.executable, "-I"))
    found = shutil.which(f"python{version}")
    return BuildPython((found, "-I")) if found and _runs(found) else None


def _runs(python: str) -> bool:
    """Return whether a program of this name is more than a version manager's stand-in for what is not chosen."""
    try:
        done = subprocess.run([python, "-I", "-c", ""], capture_output=True, check=False, timeout=_START_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class PythonCache:
    """Debian's Python for the build machine's architecture, unpacked in a folder and run by its own loader."""

    def __init__(self, folder: Path, packages: PackageCache, recipe: ImageRecipe, runner: Runner) -> None:
        self._folder, self._packages, self._recipe, self._runner = folder, packages, recipe, runner

    def fetch(self) -> list[Path]:
        """Return its package files; raises like `PackageCache.fetch`."""
        packages = self._packages.fetch(self._recipe.build_install, self._recipe.build_without)
        return [self._packages.archives / package.file for package in packages]

    def unpack(self, archives: Sequence[Path]) -> BuildPython:
        """Unpack `archives`, if that was not done before, and return the Python in them.

        Raises:
            ImageError: they hold no Python or no loader.
        """
        name = "-".join(sorted(path.name for path in archives))
        root = self._folder / f"python-{self._recipe.python}-{zlib.crc32(name.encode()):08x}"
        if not root.is_dir():
            partial = root.with_name(f".{root.name}")
            shutil.rmtree(partial, ignore_errors=True)
            make_root(partial, ("lib64",))
            for archive in archives:
                unpack_package(self._runner, archive, partial, ["--exclude=./usr/share"])
            partial.rename(root)
        return self._python(root)

    def _python(self, root: Path) -> BuildPython:
        loaders = sorted(root.glob("usr/lib*/ld-linux*.so.*"))
        libraries = sorted(path.parent for path in root.glob("usr/lib/*/libc.so.6"))
        program = root / f"usr/bin/python{self._recipe.python}"
        if not (loaders and libraries and program.exists()):
            raise ImageError(f"{root}: holds no Python {self._recipe.python}; remove the folder and run it again")
        command = (str(loaders[0]), "--library-path", str(libraries[0]), str(program), "-s")
        return BuildPython(command, {"PYTHONHOME": str(root / "usr")})


def compile_tree(runner: Runner, python: BuildPython, root: Path, folders: Sequence[str], *, strict: bool) -> None:
    """Compile the folders below `root` for a guest that has them below ``/``, on all cores.

    The bytecode is never compared with its source: file times do not survive the way into the guest.

    Raises:
        ImageError: with `strict`, a source does not compile.
    """
    found = [path for folder in folders for path in (root / folder).rglob("*.py")]
    sources = [path for path in found if not path.is_symlink()]  # one into /etc would lead out of the tree
    shares = deal(sources, max(1, min(os.cpu_count() or 1, len(sources) // _SOURCES_WORTH_A_PROCESS)))
    # compileall's own workers would outlive it when it is killed; these are programs of the runner.
    runner.parallel(lambda share: _compile(runner, python, root, share, strict), shares, lambda _: None)


def deal(sources: Sequence[Path], shares: int) -> list[list[Path]]:
    """Deal files out so that every share has about as many bytes."""
    largest_first = sorted(sources, key=lambda path: (-path.stat().st_size, path))
    return [largest_first[start::shares] for start in range(shares)]


def _compile(runner: Runner, python: BuildPython, root: Path, sources: Sequence[Path], strict: bool) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="csd-compile-", suffix=".txt") as names:
        names.writelines(f"{path}\n" for path in sources)
        names.flush()
        command = [
            *(*python.command, "-m", "compileall", "-q" if strict else "-qq", "-i", names.name),
            *("--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"),
        ]
        accept = (0,) if strict else (0, 1)
        remedy = "correct the source"
        runner.run(command, "compile", environment=python.environment, accept=accept, remedy=remedy)

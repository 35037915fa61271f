"""Bytecode for a drive's Python, the same bytes wherever it is made, so that no ARM core compiles anything."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from csd_emu.image.guest_bytecode import BuildPython, deal
from csd_emu.image.runner import Runner

_PROCESSES = 4
# Runs in the Python of the drive's version. Marshal's later formats depend on what else the process has seen, the
# second does not. Bytecode is never compared with its source, whose time means nothing on a drive.
_COMPILER = """
import importlib.util, marshal, os, sys
root, names = sys.argv[1:]
for name in open(names, encoding="utf-8").read().splitlines():
    path = os.path.join(root, name)
    with open(path, "rb") as file:
        source = file.read()
    try:
        code = compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        continue  # packages carry samples for other versions
    target = importlib.util.cache_from_source(path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little"))
        file.write(importlib.util.source_hash(source) + marshal.dumps(code, 2))
"""


def compile_sources(runner: Runner, python: BuildPython, root: Path, names: Sequence[Path]) -> None:
    """Compile the files `names`, relative to `root`, each into the cache folder beside it.

    Raises:
        ImageError: that Python cannot be run.
    """
    shares = deal([root / name for name in names], max(1, min(_PROCESSES, len(names))))
    runner.parallel(lambda share: _compile(runner, python, root, share), shares, lambda _: None)


def _compile(runner: Runner, python: BuildPython, root: Path, sources: Sequence[Path]) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="csd-compile-", suffix=".txt", encoding="utf-8") as names:
        names.writelines(f"{path.relative_to(root).as_posix()}\n" for path in sources)
        names.flush()
        # The order of a set's members depends on the seed.
        environment = {**python.environment, "PYTHONHASHSEED": "0"}
        command: list[str | Path] = [
            *(word for word in python.command if word != "-I"),
            "-s",
            "-c",
            _COMPILER,
            root,
            names.name,
        ]
        runner.run(command, "compile the drive's packages", environment=environment)

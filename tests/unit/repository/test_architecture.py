"""Rules of structure that import-linter (pyproject.toml) does not hold."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from tests import ROOT

PACKAGES = ("firmware_agent", "csd_emu", "host", "csd_lab")
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# torch.load and numpy.load unpickle unless they are told not to.
LOADERS = {("torch", "load"), ("torch", "save"), ("np", "load"), ("numpy", "load")}
# Without one of these words a file breaks no rule on unpickling.
SUSPECTS = re.compile("|".join((*UNPICKLERS, r"\.load\b", r"\.save\b", "allow_pickle")))


def sources(*packages: str) -> list[Path]:
    found = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    assert found
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, also inside functions and under TYPE_CHECKING."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield ".".join((*package[: len(package) + 1 - node.level], node.module or ""))


def loads_tensors_alone(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether it is a call with ``weights_only=True``: torch then reads tensors and runs no code."""
    return isinstance(node, ast.Call) and any(
        each.arg == "weights_only" and isinstance(each.value, ast.Constant) and each.value.value is True
        for each in node.keywords
    )


def test_nothing_is_ever_unpickled() -> None:
    for path in sources(*PACKAGES, "images", "examples"):
        if not SUSPECTS.search(path.read_text(encoding="utf-8")):
            continue  # parsing takes long
        unpicklers = {name.split(".")[0] for name in imported(path)} & UNPICKLERS
        assert not unpicklers, f"{path} imports {sorted(unpicklers)}"
        tensors_alone = {id(node.func) for node in ast.walk(parsed(path)) if loads_tensors_alone(node)}
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in tensors_alone:
                assert (node.value.id, node.attr) not in LOADERS, f"{path}:{node.lineno}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant)
                assert node.value.value is False, f"{path}:{node.value.lineno}"


def test_the_emulator_prints_nothing() -> None:
    for path in sources("csd_emu"):
        if "print" not in path.read_text(encoding="utf-8"):
            continue  # parsing takes long
        calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
        lines = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not lines, f"{path} prints in lines {lines}"


def test_the_rules_see_what_they_forbid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "firmware_agent" / "deep" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "def f():\n    from host.fleet.fleet import Fleet\n    import csd_emu.util.paths\n    from ..a import b\n"
    )
    assert imported(file) == ("host.fleet.fleet.Fleet", "csd_emu.util.paths", "firmware_agent.a")

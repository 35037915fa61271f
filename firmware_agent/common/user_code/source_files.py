"""Python files of the user's that travel as text: a file, and what it imports from beside it.

The others go along as a comment at its end, so that the text is still the file: its lines have their numbers.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import json
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from firmware_agent.common.atomic_files import read_file
from firmware_agent.common.folded_traceback import remember_source

MAX_SOURCE_BYTES = 1 << 19
_NOT_IN_DRIVES = re.compile(r"(\w+\.)?TYPE_CHECKING|__name__ == '__main__'")
# What catches an import that fails.
_MISSING = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_MARK = "\n# csd-emu: what it imports from beside it, as JSON: "


def read_source(path: Path) -> str:
    """Return the text of a file, with those files beside it that it imports by their names, and that those import.

    Raises:
        OSError: one of them cannot be read, or all together are too large.
        UnicodeDecodeError: one is no UTF-8.
    """
    text = read_file(path, MAX_SOURCE_BYTES).decode()
    files: dict[str, str] = {}
    waiting = [] if _MARK in text else [text]  # of a run's directory
    while waiting:
        for name, _ in _imported(waiting.pop(), ast.walk):
            beside = path.parent / f"{name}.py"
            if name not in files and name not in sys.stdlib_module_names and beside.is_file() and beside != path:
                files[name] = read_file(beside, MAX_SOURCE_BYTES).decode()
                waiting.append(files[name])
    whole = f"{text}{_MARK}{json.dumps(files)}\n" if files else text
    if len(whole.encode()) > MAX_SOURCE_BYTES:
        raise OSError(f"with {', '.join(files)}, which it imports, it is larger than {MAX_SOURCE_BYTES} bytes")
    return whole


def needed_imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield package and place of what a file and those that travel with it import anywhere and cannot do without."""
    files = _others(source)
    for file, text in {"": source, **{f"{name}.py, ": text for name, text in files.items()}}.items():
        yield from (
            (name.partition(".")[0], f"{file}line {node.lineno}")
            for name, node in _imported(text, _needed)
            if name not in files
        )


def module_from(where: str, source: str) -> types.ModuleType:
    """Return the module of a file's text; it is known to the interpreter by a name of its own, as dataclasses need it.

    Files that travel with it are found by its imports alone: nobody else's `import helpers` gets them.

    Raises:
        BaseException: whatever the text raises; it may be no Python.
    """
    return _run(f"csd_emu_user_{hashlib.sha256(source.encode()).hexdigest()[:12]}", where, source, _others(source))


def _others(source: str) -> dict[str, str]:
    _, mark, others = source.rpartition(_MARK)
    with contextlib.suppress(ValueError, TypeError):  # what is damaged is missed where it is imported
        return dict(json.loads(others)) if mark else {}
    return {}


def _run(name: str, where: str, source: str, files: Mapping[str, str]) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = where
    if files:
        module.__dict__["__builtins__"] = vars(builtins) | {"__import__": _importer(name.partition(".")[0], files)}
    remember_source(where, source)
    try:
        exec(compile(source, where, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _importer(top: str, files: Mapping[str, str]) -> Callable[..., Any]:
    """Return what imports for the modules called `top` and `top`.NAME."""

    def find(name: str, *arguments: Any, **more: Any) -> Any:
        if name not in files:
            return builtins.__import__(name, *arguments, **more)
        full = f"{top}.{name}"
        return sys.modules.get(full) or _run(full, f"{name}.py", files[name], files)

    return find


def _needed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield statements of a file, but what a drive never comes to, or what is tried with a way out if it is missing."""
    yield node
    inner: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Try) and any(handler.type is None or _catches(handler.type) for handler in node.handlers):
        inner = node.finalbody
    elif isinstance(node, ast.With) and any(_catches(item.context_expr) for item in node.items):
        inner = ()
    elif isinstance(node, ast.If) and _NOT_IN_DRIVES.fullmatch(ast.unparse(node.test)):
        inner = node.orelse
    yield from chain.from_iterable(_needed(each) for each in inner if not isinstance(each, ast.expr))


def _catches(errors: ast.expr) -> bool:
    return not _MISSING.isdisjoint(each.id for each in ast.walk(errors) if isinstance(each, ast.Name))


def _imported(text: str, nodes: Callable[[ast.AST], Iterable[ast.AST]]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names of modules that `nodes` of a text import, and where; none if it is no Python."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        for node in nodes(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield node.module or "", node

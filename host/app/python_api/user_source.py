"""Source of a user's class or function as one self-contained file: what a notebook or a script has defined.

A drive gets a model as source, never as a pickle. A class or function of a file is named by that file; of one that was
defined in a notebook, a console or the script that runs, the source is collected with what it uses: imports, constants,
and other such classes and functions.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import symtable
import sys
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firmware_agent.common.errors import ConfigurationError

MAIN = "__main__"
_CODE = type, types.FunctionType


def name_code(made: Callable[..., Any], folder: Path) -> str:
    """Return ``file.py:name`` of a class or function; what has no file of its own is written into `folder`.

    Raises:
        ConfigurationError: it is no class or function, or uses what cannot be shipped; the message names the line.
    """
    if not isinstance(made, _CODE):
        raise ConfigurationError(
            f"{made!r} is no class or function; give the class, or a function that makes the model, not an instance"
        )
    name = made.__qualname__
    if made.__name__ == "<lambda>":
        raise ConfigurationError("a lambda has no name to be shipped by; write a function with def")
    if "." in made.__module__ and "<" not in name:
        return f"{made.__module__}:{name}"
    file = getattr(sys.modules.get(made.__module__), "__file__", None)
    if made.__module__ != MAIN and file is not None and "<" not in name:
        return f"{Path(file).resolve()}:{name}"
    path = folder / f"{made.__name__.lower()}.py"
    path.write_text(collect_source(made), encoding="utf-8")
    return f"{path}:{made.__name__}"


def collect_source(made: Callable[..., Any]) -> str:
    """Return the source of a class or function with all that it uses.

    Raises:
        ConfigurationError: it uses what cannot be shipped.
    """
    collected = _Collected()
    collected.add(made)
    return "\n".join(["\n".join(collected.lines), "", *collected.pieces])


@dataclass
class _Collected:
    """What a file has so far.

    Attributes:
        lines: imports and constants.
        pieces: classes and functions, each behind those that it uses.
    """

    lines: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)

    def add(self, made: Any) -> None:
        """Add a class or function, and what it uses before it."""
        self._known.add(made.__name__)
        source, first_line = read_source(made)
        values = made.__globals__ if isinstance(made, types.FunctionType) else vars(sys.modules[made.__module__])
        local = "<locals>" in made.__qualname__
        for name, line, in_class_body in _global_names(source):
            where = f"{made.__name__}, line {first_line + line - 1}: {name!r}"
            outer = local and in_class_body and not isinstance(values.get(name), (types.ModuleType, *_CODE))
            if name in _free_values(made) or outer:
                raise ConfigurationError(f"{where} is a variable of the function around it; pass it as an argument")
            if name not in self._known and name in values:
                self._add_used(name, values[name], where)
        self.pieces.append(f"\n{source.rstrip()}\n")

    def _add_used(self, name: str, value: Any, where: str) -> None:
        if isinstance(value, types.ModuleType):
            self._line(name, f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}")
        elif getattr(value, "__module__", None) == MAIN and isinstance(value, _CODE):
            if value.__name__ not in self._known:
                self.add(value)
            if name != value.__name__:
                self.pieces.append(f"\n{name} = {value.__name__}\n")
                self._known.add(name)
        elif isinstance(value, (*_CODE, types.BuiltinFunctionType)) and value.__module__ is not None:
            self._line(name, f"from {value.__module__} import {value.__qualname__} as {name}")
        elif _is_plain(value):
            self._line(name, f"{name} = {value!r}")
        else:
            raise ConfigurationError(
                f"{where} is a {type(value).__name__}, which cannot be shipped to a drive; make it inside, or have it "
                "be a number, a text, or a list, tuple or mapping of them"
            )

    def _line(self, name: str, line: str) -> None:
        self._known.add(name)
        self.lines.append(line)


def read_source(made: Any) -> tuple[str, int]:
    """Return the source of a class or function, and its first line's number in the file or cell.

    Raises:
        ConfigurationError: it is not known: typed into a plain console, or made by `exec`.
    """
    try:
        lines, first = inspect.getsourcelines(made)
        return textwrap.dedent("".join(lines)), first
    except (OSError, TypeError):
        if isinstance(made, type) and (found := _read_class(made)) is not None:
            return found
    raise ConfigurationError(
        f"the source of {made.__name__} is not known here; define it in a notebook's cell, or in a file"
    )


def _read_class(made: type) -> tuple[str, int] | None:
    """Return the source of a class of a notebook's cell: a method of its own knows the cell, else it is the latest."""
    files = [value.__code__.co_filename for value in vars(made).values() if isinstance(value, types.FunctionType)]
    cells = [file for file in reversed(linecache.cache) if file.startswith("<") or "ipykernel" in file]
    for file in files or cells:
        lines = linecache.getlines(file)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:  # a cell with a magic
            continue
        for node in reversed([each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]):
            if node.name == made.__name__:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno])), first
    return None


def _global_names(source: str) -> list[tuple[str, int, bool]]:
    """Return the names that code has from outside, in which line, and whether the body of a class reads them."""
    lines: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            lines.setdefault(node.id, node.lineno)
    found: dict[str, bool] = {}
    tables = [symtable.symtable(source, "model", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and symbol.is_global() and not hasattr(builtins, name := symbol.get_name()):
                found[name] = found.get(name, False) or table.get_type() == "class"
    return sorted(((name, lines.get(name, 1), body) for name, body in found.items()), key=lambda each: each[1])


def _free_values(made: Any) -> frozenset[str]:
    """Return the variables of functions around a function, or around the methods of a class."""
    functions = [made] if isinstance(made, types.FunctionType) else vars(made).values()
    return frozenset(
        name
        for each in functions
        if isinstance(each, types.FunctionType)
        for name in each.__code__.co_freevars
        if name != "__class__"
    )


def _is_plain(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False

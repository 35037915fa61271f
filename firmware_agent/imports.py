"""What ``package.module:name`` in a file from elsewhere may name: a class or function of an installed package.

Not the standard library, whose functions run programs, and not csd-emu itself; and not what only happens to be in that
module because it was imported there.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import json
import sys
import types
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_OWN = frozenset({"csd_emu", "csd_lab", "firmware_agent", "host"})
# Their functions build no models or strategies: they read pickles, fetch and run code, or install packages.
_NO_FUNCTIONS = frozenset({"numpy", "torch", "pip", "setuptools", "pkg_resources", "psutil"})


def check_module(where: str) -> None:
    """Return if the dotted path `where` lies in an installed package that may be named; nothing is imported.

    Raises:
        ValueError: it does not.
    """
    top = check_outside(where)
    if not _owners(top):
        raise ValueError(
            f"{top} is in no installed package; install it (pip install -e . does for your own), or name its file, as "
            "in my_file.py:name"
        )


def check_outside(where: str) -> str:
    """Return the first part of a dotted path; ValueError if that is the standard library's, or csd-emu's own."""
    parts = where.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"{where!r} is no path of a module; write package.module:name, or my_file.py:name")
    if parts[0] in sys.stdlib_module_names or parts[0] in sys.builtin_module_names:
        raise ValueError(f"{parts[0]} is in Python's standard library, where nothing may be named; name your own")
    if parts[0] in _OWN:
        raise ValueError(f"{parts[0]} is csd-emu's own, where nothing may be named; use a built-in name, or your own")
    return parts[0]


def import_named(where: str, name: str) -> Any:
    """Import the module `where` and return the class or function `name` (dots allowed) that is defined there.

    One that a package's module has from another module of the same package counts as defined there.

    Raises:
        ValueError: it may not be named.
        Exception: whatever the module raises while it is imported; AttributeError if it has no such name.
    """
    top = check_outside(where)
    target = importlib.import_module(where)
    for part in name.split("."):
        target = getattr(target, part)
    check_target(target, name)
    home = str(target.__module__).partition(".")[0]
    if home != top and not _owners(home) & _owners(top):
        raise ValueError(f"{name} is not {top}'s own but {home}'s; name it where it is defined")
    return target


def name_in(module: types.ModuleType, name: str) -> Any:
    """Return the class or function `name` (dots allowed) of the user's own module, not one that it got elsewhere.

    Raises:
        ValueError: it may not be named.
        AttributeError: the module has no such name.
    """
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part)
    meant = target
    while isinstance(meant, functools.partial):
        meant = meant.func
    if not callable(target):
        raise ValueError(f"{name} is not callable; name a class or function")
    home = str(getattr(meant, "__module__", ""))
    if home != module.__name__ and home.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(
            f"{name} is {home}'s, which is in Python's standard library; name a class or function of yours"
        )
    return target


def check_source(source: str, where: str, name: str) -> None:
    """Return if Python's text `source` can be parsed and binds `name` somewhere; none of it is run.

    Raises:
        ValueError: it does not.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a literal that is merely odd
            tree = ast.parse(source, where)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    first = name.partition(".")[0]
    bound = (
        first in (getattr(node, "name", None), getattr(node, "asname", None), getattr(node, "id", None))
        for node in ast.walk(tree)
    )
    if not any(bound) and not any(isinstance(node, ast.ImportFrom) and _has_star(node) for node in ast.walk(tree)):
        raise ValueError(f"it has no {first!r}")


def _has_star(node: ast.ImportFrom) -> bool:
    return any(each.name == "*" for each in node.names)


def check_target(target: Any, name: str) -> None:
    """Return if something that is to be called is a class or function of one's own.

    Raises:
        ValueError: it is something else, the standard library's, or csd-emu's own.
    """
    if not (inspect.isclass(target) or inspect.isfunction(target)):
        raise ValueError(f"{name} is {type(target).__name__} and not callable as a class or function of its own")
    home = check_outside(str(target.__module__))
    if home in _NO_FUNCTIONS and not inspect.isclass(target):
        raise ValueError(f"{name} is a function of {home}, which may not be named; name a class, or one of your own")


def _owners(top: str) -> frozenset[str]:
    """Return the names of the distributions with which the package or module `top` is installed; it is not imported."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return frozenset()
    if spec is None:
        return frozenset()
    places = [Path(each) for each in (spec.submodule_search_locations or [spec.origin or ""])]
    beside = [str(place.parent) for place in places]
    owners = {each.name for each in metadata.distributions(path=beside) if _holds(each, top)}
    editable = {each.name for each in metadata.distributions() if _lies_in(_editable_folder(each), places)}
    return frozenset(owners | editable)


def _holds(installed: metadata.Distribution, top: str) -> bool:
    """Return whether a distribution says that it has a module of this name."""
    if top == (installed.name or "").replace("-", "_") or top in (installed.read_text("top_level.txt") or "").split():
        return True
    record = "\n" + (installed.read_text("RECORD") or "")
    return f"\n{top}/" in record or f"\n{top}." in record


def _editable_folder(installed: metadata.Distribution) -> Path | None:
    """Return the folder from which a distribution was installed with ``pip install -e``, if it was."""
    try:
        direct = json.loads(installed.read_text("direct_url.json") or "{}")
    except (OSError, ValueError):
        return None
    if not isinstance(direct, dict) or not (direct.get("dir_info") or {}).get("editable"):
        return None
    return Path(unquote(urlsplit(str(direct.get("url"))).path))


def _lies_in(folder: Path | None, places: Sequence[Path]) -> bool:
    return folder is not None and any(place.is_relative_to(folder) for place in places)

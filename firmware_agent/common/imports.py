"""Rules for ``package.module:name`` in a file from elsewhere: a class or function of an installed package.

Not the standard library, whose functions run programs, not csd-emu itself, and not what csd-emu is installed with:
that is on every machine, whoever wrote the file, and reads pickles and evaluates text. Of torch its modules may be
named, of Flower its strategies. Nor what only happens to be in a module because it was imported there. At the end,
modules that moved.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import json
import operator
import re
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_OWN = frozenset({"csd_emu", "csd_lab", "firmware_agent", "host"})
_SELF = "csd-emu"
# Packages that csd-emu is installed with, and whose classes of one kind may be named all the same.
_BASES = {"torch": ("torch.nn", "Module"), "flwr": ("flwr.serverapp.strategy", "Strategy")}
# Flower's programs are objects, which a module of the user's makes.
_APPS = {("flwr.serverapp.server_app", "ServerApp"), ("flwr.clientapp.client_app", "ClientApp")}
# Beside what csd-emu's metadata says that it needs; a drive may have none.
_ALWAYS = frozenset(
    {"click", "fsspec", "grpc", "jinja2", "joblib", "mpmath", "msgspec", "networkx", "numpy", "pip", "pkg_resources"}
    | {"psutil", "setuptools", "sklearn", "scipy", "sympy", "wheel", "xxhash", "yaml"}
)
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?", re.DOTALL)
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def check_module(where: str, name: str) -> None:
    """Return if the dotted path `where` lies in an installed package that may be named; nothing is imported.

    Of a module that is imported already, as torch is, `name` must be a class or function that may be named, too.

    Raises:
        ValueError: it does not, or is not.
    """
    top = check_outside(where)
    if not _owners(top):
        raise ValueError(
            f"{top} is in no installed package; install it (pip install -e . does for your own), or name its file, as "
            "in my_file.py:name"
        )
    if (module := sys.modules.get(where)) is not None:
        try:
            _defined_in(module, top, name)
        except AttributeError as error:
            raise ValueError(str(error)) from error


def check_outside(where: str) -> str:
    """Return the first part of a dotted path.

    Raises:
        ValueError: that is the standard library's, csd-emu's own, or (but for torch) of what csd-emu is installed with.
    """
    parts = where.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"{where!r} is no path of a module; write package.module:name, or my_file.py:name")
    if parts[0] in sys.stdlib_module_names or parts[0] in sys.builtin_module_names:
        raise ValueError(f"{parts[0]} is in Python's standard library, where nothing may be named; name your own")
    if parts[0] in _OWN:
        raise ValueError(f"{parts[0]} is csd-emu's own, where nothing may be named; use a built-in name, or your own")
    if parts[0] not in _BASES and _is_dependency(parts[0]):
        raise ValueError(f"{parts[0]} is one of csd-emu's own dependencies, where nothing may be named; name your own")
    return parts[0]


def import_named(where: str, name: str) -> Any:
    """Import the module `where` and return the class or function `name` (dots allowed) that is defined there.

    One that a package's module has from another module of the same package counts as defined there.

    Raises:
        ValueError: it may not be named.
        Exception: whatever the module raises while it is imported; AttributeError if it has no such name.
    """
    top = check_outside(where)
    return _defined_in(importlib.import_module(where), top, name)


def _defined_in(module: types.ModuleType, top: str, name: str) -> Any:
    """Return the class or function `name` of a module of the package `top` (see `import_named`)."""
    target = operator.attrgetter(name)(module)
    if (type(target).__module__, type(target).__name__) in _APPS and top not in _BASES:
        return target
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
    meant = target = operator.attrgetter(name)(module)
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
    if not any(bound) and not any(isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(tree)):
        raise ValueError(f"it has no {first!r}")


def check_target(target: Any, name: str) -> None:
    """Return if something that is to be called is a class or function of one's own.

    Raises:
        ValueError: it is something else, or of what may not be named (see `check_outside`).
    """
    if not (inspect.isclass(target) or inspect.isfunction(target)):
        raise ValueError(f"{name} is {type(target).__name__} and not callable as a class or function of its own")
    home = check_outside(str(target.__module__))
    if home in _BASES:
        module, base = _BASES[home]
        if not (inspect.isclass(target) and issubclass(target, getattr(importlib.import_module(module), base))):
            raise ValueError(f"{name} is {home}'s, and no class of a {module}.{base}; name one, or write it in a file")


@functools.lru_cache(maxsize=64)
def _is_dependency(top: str) -> bool:
    """Return whether the package or module `top` is of a distribution that csd-emu is installed with."""
    return top in _ALWAYS or not {_plain_name(each) for each in (top, *_owners(top))}.isdisjoint(_dependencies())


@functools.cache
def _dependencies() -> frozenset[str]:
    """Return the names of all distributions that csd-emu needs with all its extras, or that those need in turn.

    Extras of others are followed where they are asked for: what may be used beside them is the user's choice.
    """
    found: set[tuple[str, str]] = set()
    waiting = [(_SELF, "*")]
    while waiting:
        this = waiting.pop()
        if this in found:
            continue
        found.add(this)
        try:
            needed = metadata.requires(this[0]) or []
        except (metadata.PackageNotFoundError, OSError, ValueError):
            continue
        waiting += [each for requirement in needed for each in _read_requirement(requirement, this[1])]
    return frozenset(name for name, _ in found) - {_SELF}


def _read_requirement(requirement: str, extra: str) -> list[tuple[str, str]]:
    """Return (name, extra) of what is needed if a distribution is installed with `extra`, ``*`` for all."""
    match = _REQUIREMENT.match(requirement)
    if match is None:
        return []
    name, extras, marker = match.groups()
    only_with = [_plain_name(each) for each in _EXTRA.findall(marker or "")]
    if only_with and extra != "*" and extra not in only_with:
        return []
    return [(_plain_name(name), each) for each in ("", *map(_plain_name, (extras or "").split(",")))]


def _plain_name(name: str) -> str:
    """Return a distribution's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


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
    editable = {
        each.name
        for each in metadata.distributions()
        if (folder := _editable_folder(each)) is not None and any(place.is_relative_to(folder) for place in places)
    }
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


def adapt(target: Any, adapters: Mapping[str, str]) -> Any:
    """Return what a class, function or object that is named by its path stands for.

    Args:
        target: itself.
        adapters: package of another project -> module whose ``adapt`` returns what is made in place of its classes.
    """
    for module in (module for package, module in adapters.items() if package in sys.modules):
        target = importlib.import_module(module).adapt(target)
    return target


def moved(old: str, new: str, former: str = "", name: str = "") -> Callable[[str], Any]:
    """Return the `__getattr__` of the module `old`, which has what is in `new`; there `former` is called `name`.

    Whoever uses it is warned that all of that is in `csd_emu.extend`.
    """

    def get(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        warnings.warn(f"{old} is deprecated: import {wanted} from csd_emu.extend", FutureWarning, stacklevel=2)
        return getattr(importlib.import_module(new), name if wanted == former else wanted)

    return get

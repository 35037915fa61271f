"""Registries: the classes of one kind, such as engines or strategies, by the names that users' files give them.

A class becomes built in by a decorator in one file of its kind's package::

    @STRATEGY.register("fedavg", "The mean weighted by samples.")
    class FedAvg: ...

Names are read from the sources, without importing them, so that what only lists them stays quick. A class of an
installed package has a name by an entry point of the registry's group.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from csd_emu.util.nearest_word import hint_at
from firmware_agent.common.errors import PluginError, user_errors
from firmware_agent.common.imports import import_named

Registered = TypeVar("Registered", bound=type)
# From the first decorator of a registered class to its name; the rest of a source is not parsed.
_REGISTERED = re.compile(rb"^@\w+\.register\(.*?^class \w+", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class BuiltIn:
    """A class of the registry's own package.

    Attributes:
        name: in files.
        summary: one sentence for the documentation.
        offered: whether options of commands offer it in place of what a file says.
        module: dotted path of its module.
        class_name: its name there.
    """

    name: str
    summary: str
    offered: bool
    module: str
    class_name: str


@dataclass(frozen=True)
class Registry:
    """All classes of one kind.

    Attributes:
        word: the key that names one, in files.
        group: of the entry points.
        package: in whose modules the built-in classes are registered.
        needed: methods that a class must have.
        renamed: former name -> name of methods that a user's class may have under either, for one release.
        given: what the program gives a class if its constructor has an argument of this name: name -> what it is.
        in_order: how many of these a function is given by position, whatever it calls them; a class is given none of
            them by its constructor, but for an optimiser's first.
        by_path: whether a file may also name a class by its import path.
        adapters: package of another project -> module whose ``adapt`` returns what is made in place of its classes.
    """

    word: str
    group: str
    package: str
    needed: tuple[str, ...]
    given: Mapping[str, str] = field(default_factory=dict, hash=False)
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)
    in_order: int = 0
    by_path: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict, hash=False)

    def register(self, name: str, summary: str, *, offered: bool = True) -> Callable[[Registered], Registered]:
        """Return the decorator that makes a class of `package` the built-in `name`; all arguments are literals.

        Raises:
            PluginError: when it is applied: the class lacks a method.
        """

        def check(kind: Registered) -> Registered:
            self.check_class(kind, name)
            return kind

        return check

    @functools.cached_property
    def entries(self) -> Mapping[str, BuiltIn]:
        """The built-in classes by name, in alphabetical order; nothing is imported.

        Raises:
            PluginError: a name is registered twice.
        """
        found: dict[str, BuiltIn] = {}
        for each in _scan(self.package):
            if each.name in found:
                both = f"{found[each.name].module} and {each.module}"
                raise PluginError(f"{self.word} {each.name!r} is registered twice, in {both}; rename one of them")
            found[each.name] = each
        return MappingProxyType(dict(sorted(found.items())))

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names of the built-in classes."""
        return tuple(self.entries)

    @property
    def offered(self) -> tuple[str, ...]:
        """The built-in names that options of commands offer."""
        return tuple(name for name, each in self.entries.items() if each.offered)

    @property
    def names(self) -> tuple[str, ...]:
        """All names: the built-in ones, and those of installed packages."""
        return tuple(dict.fromkeys([*self.entries, *(each.name for each in self.list_entry_points())]))

    def load(self, name: str) -> Any:
        """Import the class called `name`.

        Raises:
            PluginError: it is not known, cannot be imported, or lacks a method.
            ModuleNotFoundError: a built-in class needs a package that is not installed.
        """
        if (entry := self.entries.get(name)) is not None:
            return getattr(importlib.import_module(entry.module), entry.class_name)
        where, _, attribute = self.find_entry_point(name).partition(":")
        try:
            kind = import_named(where, attribute)
        except user_errors() as error:
            raise PluginError(f"{self.word} {name!r}: cannot be imported: {error!r}") from error
        self.check_class(kind, name)
        return kind

    def check_class(self, kind: Any, name: str) -> None:
        """Return if a class has the methods that its kind needs.

        Raises:
            PluginError: it lacks one.
        """
        if missing := [each for each in self.needed if not callable(getattr(kind, each, None))]:
            raise PluginError(f"{self.word} {name!r}: {kind.__name__} is no {self.word}, {missing[0]} is missing")

    def list_entry_points(self) -> list[metadata.EntryPoint]:
        """Return the entry points of installed packages, one for each time that a name is declared."""
        return list({(each.name, each.value): each for each in metadata.entry_points(group=self.group)}.values())

    def check_name(self, name: str) -> None:
        """Return if `name` is known, or an import path where that is allowed.

        Raises:
            PluginError: it is not; the nearest known name is given.
        """
        if name in self.entries:
            return
        where, colon, attribute = name.partition(":")
        if self.by_path and where and attribute:
            return
        if self.by_path and where and colon:
            raise PluginError(f"{self.word} {name!r}: the class is missing; write {name}Class")
        if name not in (known := self.names):
            hint = hint_at(name, known, f"choose one of: {', '.join(known)}")
            own = f"; your own: my_{self.word}.py:Class or package.module:Class" if self.by_path else ""
            raise PluginError(f"{self.word} {name!r} is not known; {hint}{own}")

    def check_not_shadowed(self, name: str) -> None:
        """Return if no installed package declares an entry point with this built-in name.

        Raises:
            PluginError: one does: which of both is meant cannot be known.
        """
        for each in self.list_entry_points():
            if each.name == name:
                path = f", or write {self.word}: {each.value}" if self.by_path else ""
                raise PluginError(
                    f"{self.word} {name!r} is built in, and {_owner(each)} declares it too ({each.value}); a built-in "
                    f"name cannot be replaced: rename or uninstall that one{path}"
                )

    def find_entry_point(self, name: str) -> str:
        """Return the ``module:Class`` that an entry point stands for.

        Raises:
            PluginError: it is none, or two packages declare it.
        """
        self.check_name(name)
        values = {each.value: _owner(each) for each in self.list_entry_points() if each.name == name}
        if len(values) > 1:
            told = " and ".join(f"{value} of {owner}" for value, owner in sorted(values.items()))
            remedy = "uninstall one, or write its import path" if self.by_path else "uninstall one"
            raise PluginError(f"{self.word} {name!r} is declared twice: {told}; {remedy}")
        return next(iter(values))


def _owner(entry: metadata.EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist is not None else "an installed package"


def _scan(package: str) -> Iterator[BuiltIn]:
    """Yield the classes that are registered in the modules of a package, which is not imported."""
    top, *below = package.split(".")
    spec = importlib.util.find_spec(top)
    for root in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(root, *below).rglob("*.py")):
            module = ".".join([top, *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
            for match in _REGISTERED.finditer(path.read_bytes()):
                yield from _registrations(match[0] + b": ...", module)


def _registrations(source: bytes, module: str) -> Iterator[BuiltIn]:
    """Yield what the decorators ``REGISTRY.register(name, summary)`` of a class say."""
    kind = ast.parse(source).body[-1]
    assert isinstance(kind, ast.ClassDef)
    for call in kind.decorator_list:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "register":
            name, summary = (ast.literal_eval(argument) for argument in call.args)
            options = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
            yield BuiltIn(name, summary, options.get("offered", True), module, kind.name)

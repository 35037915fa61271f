"""From the name in a job file to the user's class."""

from __future__ import annotations

import hashlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_emu.util.registry import Registry
from csd_emu.util.renamed import adopt_old_methods
from firmware_agent.common.errors import CheckpointError, CsdError, PluginError, PluginFailed, user_errors
from firmware_agent.common.folded_traceback import user_line
from firmware_agent.common.imports import adapt, check_module, check_outside, check_source, import_named, name_in
from firmware_agent.common.user_code.source_files import module_from, read_source
from host.config.plugins.plugin_section import UserSection, accepted, given_names, read_options


@dataclass(frozen=True)
class Plugin:
    """A class of the user's, found, imported and with its options checked.

    Attributes:
        kind: what it is.
        name: as the job file has it.
        target: the class, or a function that makes an instance.
        options: keyword arguments, checked against its signature.
        source: text of the file, for ``my_file.py:Class``; a run directory keeps it.
        code_sha256: of the file that the class is defined in; empty if there is none.
    """

    kind: Registry
    name: str
    target: Callable[..., Any]
    options: Mapping[str, Any]
    source: str | None
    code_sha256: str

    def make(self, **given: Any) -> Any:
        """Return an instance, made with the options and those of `given` that its signature has.

        Raises:
            PluginError: its constructor raised.
        """
        if isinstance(self.target, type):
            adopt_old_methods(self.target, self.kind.renamed)
            if self.source is None:
                self.kind.check_class(self.target, self.name)
        try:
            made = self.target(**self.options, **accepted(self.target, given))
        except user_errors() as error:
            raise PluginError(f"{self}: making it with {dict(self.options)} failed: {describe_error(error)}") from error
        adopt_old_methods(type(made), self.kind.renamed)
        return made

    def guard(self, what: str, call: Callable[[], Any]) -> Any:
        """Return what `call`, into the user's code, returns; `what` names it.

        Raises:
            PluginFailed: it raised something that is no error of csd-emu's.
        """
        try:
            return call()
        except CsdError:
            raise
        except user_errors() as error:
            raise self.failed(f"{what} failed: {describe_error(error)}") from error

    def failed(self, what: str) -> PluginFailed:
        """Return the error of a plug-in that has not done what it should: `what` says that."""
        return PluginFailed(f"{self}: {what}", self.kind.word)

    def guard_load(self, load: Callable[[], None]) -> None:
        """Let an instance take its state out of a checkpoint.

        Raises:
            CheckpointError: the user's code does not take it.
        """
        try:
            load()
        except CheckpointError:
            raise
        except user_errors() as error:
            raise CheckpointError(f"{self}: load_state failed: {describe_error(error)}") from error

    @property
    def file_name(self) -> str | None:
        """The name under which a run directory keeps the source."""
        return None if self.source is None else Path(self.name.partition(":")[0]).name

    @property
    def portable_name(self) -> str:
        """The name from a folder that holds the file under its own name."""
        return self.name if self.source is None else f"{self.file_name}:{self.name.partition(':')[2]}"

    def __str__(self) -> str:
        return f"{self.kind.word} {self.name!r}"


def load_plugin(kind: Registry, section: UserSection, folder: Path) -> Plugin:
    """Import the class that a job file names and check its options; a file is looked for in `folder`.

    Raises:
        PluginError: it cannot be read or imported, is not callable, or does not take the options.
    """
    told = f"{kind.word} {section.name!r}"
    where, attribute, source = _find(kind, section.name, folder, told)
    try:
        target = import_named(where, attribute) if source is None else name_in(module_from(where, source), attribute)
    except user_errors() as error:
        raise PluginError(f"{told}: cannot be imported: {describe_error(error)}") from error
    code = source.encode() if source is not None else _code_of(target)
    target = adapt(target, kind.adapters)
    options = read_options(target, section.options, given_names(target, kind, told), kind.word)
    return Plugin(kind, section.name, target, options, source, hashlib.sha256(code).hexdigest() if code else "")


def check_plugin(kind: Registry, section: UserSection, folder: Path) -> None:
    """Return if what a job file names may be named and, of a file, can be parsed; nothing is imported or run.

    Raises:
        PluginError: it may not, or cannot.
    """
    told = f"{kind.word} {section.name!r}"
    where, attribute, source = _find(kind, section.name, folder, told)
    if source is None:
        return
    try:
        check_source(source, where, attribute)
    except ValueError as error:
        raise PluginError(f"{told}: cannot be imported: {error}") from error


def check_methods(plugin: Plugin, instance: object, methods: Mapping[str, int], remedy: str) -> None:
    """Return if an instance has these methods, each of which takes so many arguments by position.

    Raises:
        PluginError: one is missing, or has another signature.
    """
    for name, count in methods.items():
        try:
            method = getattr(instance, name, None)
        except user_errors() as error:
            raise PluginError(f"{plugin}: {name} failed: {describe_error(error)}; {remedy}") from error
        if not callable(method):
            raise PluginError(
                f"{plugin}: {type(instance).__name__} is no {plugin.kind.word}, {name} is missing; {remedy}"
            )
        try:
            inspect.signature(method).bind(*range(count))
        except (TypeError, ValueError) as error:
            raise PluginError(
                f"{plugin}: {name} must take {count} arguments by position ({error}); {remedy}"
            ) from error


def describe_error(error: BaseException) -> str:
    """Return what went wrong, and in which line of the user's code."""
    if isinstance(error, SyntaxError):  # it says file and line itself
        return f"{type(error).__name__}: {error}"
    return f"{type(error).__name__}: {error}{user_line(traceback.extract_tb(error.__traceback__))}"


def _find(kind: Registry, name: str, folder: Path, told: str) -> tuple[str, str, str | None]:
    """Return the module or file that is named, what is named in it, and the file's text; None for a module."""
    where, colon, attribute = name.partition(":")
    if colon and where.endswith(".py"):
        return where, attribute, _read(folder / where, told)
    try:
        if colon:
            check_module(where, attribute)
        else:  # an entry point says itself who installed it
            where, _, attribute = kind.find_entry_point(name).partition(":")
            check_outside(where)
    except ValueError as error:
        raise PluginError(f"{told}: cannot be imported: {error}") from error
    return where, attribute, None


def _read(path: Path, told: str) -> str:
    try:
        return read_source(path)
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(
            f"{told}: cannot read {path} ({error}); give a path from the job file's folder, or if the file is large, "
            "make it a package and install it"
        ) from error


def _code_of(target: Callable[..., Any]) -> bytes:
    """Return the file that an imported class is defined in, so that a resumed run sees that it was changed."""
    try:
        file = inspect.getsourcefile(target)
        return Path(file).read_bytes() if file is not None else b""
    except (OSError, TypeError):
        return b""

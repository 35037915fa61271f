"""Code that a job names: something built in, a function of an installed package, or one in a file of the user's.

A file's text travels to the drives; it is found on the host, and run wherever it is needed.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from firmware_agent.common.errors import ModelError, user_errors
from firmware_agent.common.imports import check_module, import_named, name_in
from firmware_agent.common.user_code.source_files import module_from, read_source

Kind = TypeVar("Kind", bound=type)


class BuiltIns(dict[str, type]):
    """Name -> class of what is built in of one kind."""

    def register(self, name: str, summary: str) -> Callable[[Kind], Kind]:
        """Return the decorator that makes a class the built-in `name`; the job's registry reads `summary` here."""

        def add(kind: Kind) -> Kind:
            self[name] = kind
            return kind

        return add


@dataclass(frozen=True)
class ShippedCode:
    """A class or function of the user's, anywhere.

    Attributes:
        name: built-in name, ``package.module:function``, or ``my_file.py:function``.
        source: the text of the user's file, for the last form; it travels to the drives.
        arguments: keyword arguments of it.
    """

    name: str
    source: str | None = None
    arguments: Mapping[str, int | float | str | bool] = field(default_factory=dict)


def find_code(kind: str, code: ShippedCode, built_in: Collection[str], folder: Path) -> ShippedCode:
    """Return code that a job file names, with its source; a file is looked for beside it, in `folder`.

    None of it is run, and nothing is imported. `kind` is what messages call it.

    Raises:
        ModelError: the file cannot be read, or the name is neither built in nor of a form that may be named
            (see `firmware_agent.common.imports`).
    """
    where, colon, target = code.name.partition(":")
    if not colon:
        check_built_in(kind, code.name, built_in)
        return code
    if where.endswith(".py"):
        return ShippedCode(code.name, _read(kind, code.name, folder / where), code.arguments)
    try:
        check_module(where, target)
    except ValueError as error:
        raise ModelError(f"{kind} {code.name!r}: cannot be imported: {error}") from error
    return code


def check_built_in(kind: str, name: str, built_in: Collection[str]) -> None:
    """Return if this is a built-in name.

    Raises:
        ModelError: it is none; the message says which are near.
    """
    if name not in built_in:
        near = difflib.get_close_matches(name, built_in, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"built in: {', '.join(built_in)}."
        raise ModelError(
            f"{kind} {name!r} is not built in; {hint} Your own: my_file.py:function or package.module:function"
        )


def load_code(kind: str, code: ShippedCode) -> Callable[..., Any]:
    """Import code that is not built in.

    Raises:
        ModelError: it cannot be imported.
    """
    where, _, target = code.name.partition(":")
    try:
        if code.source is None:
            return import_named(where, target)  # type: ignore[no-any-return]
        return name_in(module_from(where, code.source), target)  # type: ignore[no-any-return]
    except user_errors() as error:  # the user's module may raise anything while it is imported
        raise ModelError(
            f"{kind} {code.name!r}: cannot be imported ({error!r}); on a drive only torch, numpy and the standard "
            f"library are there: put anything else into files beside the {kind}'s, or have image.packages of the array "
            "file name it"
        ) from error


def make_code(kind: str, code: ShippedCode, built_in: Mapping[str, type]) -> Callable[..., Any]:
    """Return a function with its options, or an instance of a class that was made with them.

    Raises:
        ModelError: it is not built in, or cannot be imported or made.
    """
    if ":" in code.name:
        found = load_code(kind, code)
    else:
        check_built_in(kind, code.name, built_in)
        found = built_in[code.name]
    try:
        made = found(**code.arguments) if isinstance(found, type) else functools.partial(found, **code.arguments)
    except user_errors() as error:
        raise ModelError(f"{kind} {code.name!r}: making it with {dict(code.arguments)} failed: {error!r}") from error
    if not callable(made):
        raise ModelError(f"{kind} {code.name!r}: is {type(made).__name__}, which cannot be called; name a function")
    return made


def _read(kind: str, name: str, path: Path) -> str:
    try:
        return read_source(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{kind} {name!r}: cannot read {path} ({error}); give a path from the job file's folder, of a file that is "
            "small"
        ) from error

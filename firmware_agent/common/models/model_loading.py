"""From a model's name in a job file to a torch module, on the host and in the drive alike."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firmware_agent.common.atomic_files import read_file
from firmware_agent.common.errors import ModelError, user_errors
from firmware_agent.common.folded_traceback import remember_source
from firmware_agent.common.imports import check_module, import_named, name_in
from firmware_agent.common.models.zoo import ZOO

if TYPE_CHECKING:
    from torch import nn

MAX_SOURCE_BYTES = 1 << 19


@dataclass(frozen=True)
class ModelSpec:
    """How to build a model anywhere.

    Attributes:
        name: a zoo name, ``package.module:function``, or ``my_net.py:function``.
        source: the text of the user's file, for the last form; it travels to the drives.
        arguments: keyword arguments of the builder.
    """

    name: str
    source: str | None = None
    arguments: Mapping[str, int | float | str | bool] = field(default_factory=dict)


def resolve_model(name: str, arguments: Mapping[str, int | float | str | bool], folder: Path) -> ModelSpec:
    """Return the spec of the model that a job file names; a file is looked for beside it, in `folder`.

    None of it is run, and nothing is imported.

    Raises:
        ModelError: the file cannot be read, or the name is neither in the zoo nor of a form that may be named
            (see `firmware_agent.common.imports`).
    """
    where, colon, target = name.partition(":")
    if not colon:
        _check_zoo_name(name)
        return ModelSpec(name, None, arguments)
    if where.endswith(".py"):
        return ModelSpec(name, _read(name, folder / where), arguments)
    try:
        check_module(where, target)
    except ValueError as error:
        raise ModelError(f"model {name!r}: cannot be imported: {error}") from error
    return ModelSpec(name, None, arguments)


def _read(name: str, path: Path) -> str:
    try:
        return read_file(path, MAX_SOURCE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"model {name!r}: cannot read {path} ({error}); give a path from the job file's folder, of a file that is "
            "self-contained and small"
        ) from error


def build_model(spec: ModelSpec) -> nn.Module:
    """Build the model; its initial weights come from torch's global generator, which the caller seeds.

    Raises:
        ModelError: it cannot be imported or built, or is no `torch.nn.Module`.
    """
    from torch import nn

    builder = _builder(spec)
    try:
        model = builder(**spec.arguments)
    except user_errors() as error:  # the user's code may raise anything, and must not end the program
        raise ModelError(f"model {spec.name!r}: building it with {dict(spec.arguments)} failed: {error!r}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"model {spec.name!r}: the builder returned {type(model).__name__}, not a torch.nn.Module")
    return model


def _builder(spec: ModelSpec) -> Callable[..., Any]:
    from torch import nn

    where, colon, function = spec.name.partition(":")
    if not colon:
        return _zoo_builder(spec.name)
    try:
        if spec.source is None:
            builder = import_named(where, function)
        else:
            builder = name_in(_module_from(where, spec.source), function)
    except user_errors() as error:  # the user's module may raise anything while it is imported
        raise ModelError(
            f"model {spec.name!r}: cannot be imported ({error!r}); on a drive only torch, numpy and the standard "
            "library are there, so ship anything else inside the model file"
        ) from error
    if isinstance(builder, type) and not issubclass(builder, nn.Module):
        raise ModelError(f"model {spec.name!r}: {function} is a class, and no torch.nn.Module; nothing was built")
    return builder  # type: ignore[no-any-return]


def _zoo_builder(name: str) -> Callable[..., nn.Module]:
    _check_zoo_name(name)
    return ZOO[name].builder


def _check_zoo_name(name: str) -> None:
    if name not in ZOO:
        near = difflib.get_close_matches(name, ZOO, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"built in: {', '.join(ZOO)}."
        raise ModelError(f"model {name!r} is not built in; {hint} Your own: my_net.py:build or package.module:function")


def _module_from(where: str, source: str) -> types.ModuleType:
    module = types.ModuleType(Path(where).stem)
    remember_source(where, source)
    exec(compile(source, where, "exec"), module.__dict__)
    return module

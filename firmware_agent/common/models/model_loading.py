"""From a model's name in a job file to a torch module, on the host and in the drive alike."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firmware_agent.common.errors import ModelError, user_errors
from firmware_agent.common.models.zoo import ZOO
from firmware_agent.common.shipped_code import ShippedCode, check_built_in, find_code, load_code

if TYPE_CHECKING:
    from torch import nn


def resolve_model(name: str, arguments: Mapping[str, int | float | str | bool], folder: Path) -> ShippedCode:
    """Return the builder of the model that a job file names (see `firmware_agent.common.shipped_code`).

    Raises:
        ModelError: it is neither in the zoo, nor in a file that can be read, nor of a form that may be named.
    """
    return find_code("model", ShippedCode(name, None, arguments), ZOO, folder)


def build_model(spec: ShippedCode, freeze: Collection[str] = ()) -> nn.Module:
    """Build the model; its initial weights come from torch's global generator, which the caller seeds.

    Parameters whose names match a pattern of `freeze` (see `fnmatch`) have no gradient.

    Raises:
        ModelError: it cannot be imported or built, or is no `torch.nn.Module`; or a pattern matches no parameter, or
            they leave none to train.
    """
    from torch import nn

    builder = _builder(spec)
    try:
        model = builder(**spec.arguments)
    except user_errors() as error:  # the user's code may raise anything, and must not end the program
        raise ModelError(f"model {spec.name!r}: building it with {dict(spec.arguments)} failed: {error!r}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"model {spec.name!r}: the builder returned {type(model).__name__}, not a torch.nn.Module")
    _freeze(model, freeze)
    return model


def _freeze(model: nn.Module, patterns: Collection[str]) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not (matched := fnmatch.filter(parameters, pattern)):
            near = difflib.get_close_matches(pattern, parameters, n=3, cutoff=0.0)
            raise ModelError(f"freeze: {pattern!r} matches no parameter; near it are {', '.join(near)}")
        for name in matched:
            parameters[name].requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in parameters.values()):
        raise ModelError(f"freeze: {', '.join(map(repr, patterns))} leave no parameter to train; freeze fewer")


def _builder(spec: ShippedCode) -> Callable[..., Any]:
    from torch import nn

    if ":" not in spec.name:
        check_built_in("model", spec.name, ZOO)
        return ZOO[spec.name].builder
    builder = load_code("model", spec)
    if isinstance(builder, type) and not issubclass(builder, nn.Module):
        name = spec.name.partition(":")[2]
        raise ModelError(f"model {spec.name!r}: {name} is a class, and no torch.nn.Module; nothing was built")
    return builder

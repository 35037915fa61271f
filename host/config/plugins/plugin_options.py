"""The options of a plug-in, held against the signature of its class: names, types, bounds, and what is missing."""

from __future__ import annotations

import difflib
import inspect
import json
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import JsonValue, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from csd_emu.util.config_files import plain_message
from firmware_agent.common.errors import USER_ERRORS, PluginError

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def read_options(
    target: Callable[..., Any], options: Mapping[str, JsonValue], given: Collection[str], where: str
) -> dict[str, Any]:
    """Return the keyword arguments that `options` stand for.

    Annotations are pydantic's: ``trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1`` has bounds that are checked here.

    Args:
        target: the class, or a function that makes an instance.
        options: as the job file has them.
        given: names of arguments that the run gives; they are no options.
        where: begins each line of an error.

    Raises:
        PluginError: the signature cannot be used, or an option is unknown, missing or wrong; all are named.
    """
    parameters, hints = _signature(target, where)
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters)
    named = {each.name: each for each in parameters if each.kind in _NAMED and each.name not in given}
    problems = [f"{where}.{key}: {_unknown(key, named, given)}" for key in options if key not in named] * (
        not open_ended
    )
    values: dict[str, Any] = {key: value for key, value in options.items() if key not in named}
    for name, parameter in named.items():
        if name in options:
            try:
                values[name] = _convert(options[name], hints.get(name, Any))
            except ValidationError as error:
                problems += [f"{where}.{name}{_describe(detail)}" for detail in error.errors(include_url=False)]
            except (PydanticSchemaGenerationError, PydanticUserError) as error:
                raise PluginError(f"{where}.{name}: has a type that no job file can give ({hints[name]})") from error
        elif parameter.default is parameter.empty:
            problems.append(f"{where}.{name}: is missing; add it")
    if problems:
        raise PluginError("\n".join(problems))
    return values


def list_options(target: type, given: Collection[str]) -> dict[str, tuple[Any, Any]]:
    """Return the options of a class: name -> (annotation, default), ``...`` for a default that there is not."""
    parameters, hints = _signature(target, target.__name__)
    named = [each for each in parameters if each.kind in _NAMED and each.name not in given]
    return {
        each.name: (hints.get(each.name, Any), ... if each.default is each.empty else each.default) for each in named
    }


def accepted(target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the `given` arguments that the signature of `target` has by name."""
    names = {each.name for each in inspect.signature(target).parameters.values() if each.kind in _NAMED}
    return {name: value for name, value in given.items() if name in names}


def _signature(target: Callable[..., Any], where: str) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    try:
        parameters = list(inspect.signature(target).parameters.values())
        holder = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
        hints = typing.get_type_hints(holder, include_extras=True)
    except USER_ERRORS as error:  # an annotation is any expression of the user's
        raise PluginError(f"{where}: the signature of {target!r} cannot be read ({error!r})") from error
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY and each.default is each.empty:
            raise PluginError(f"{where}: {each.name} can only be given by position; options are given by name")
    return parameters, hints


def _convert(value: JsonValue, annotation: Any) -> Any:
    # As JSON, so that a list may become a tuple and a string an enumeration's member, and nothing else is converted.
    return TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)


def _unknown(key: str, named: Collection[str], given: Collection[str]) -> str:
    if key in given:
        return "is given by the run and no option; leave it out"
    near = difflib.get_close_matches(key, named, n=1)
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; valid keys: {', '.join(named)}" if named else "unknown key; it has no options"


def _describe(detail: Any) -> str:
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
    return f"{inner}: {plain_message(detail)} (it is {detail['input']!r})"

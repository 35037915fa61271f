"""Keys of the job file, `strategy` and `tuner`, that name a class of a registry: its name alone, or with options.

Options are held against the signature of the class: names, types, bounds, and what is missing.
"""

from __future__ import annotations

import functools
import inspect
import json
import operator
import re
import typing
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    PydanticUserError,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import CoreSchema

from csd_emu.util.config_files import Config, plain_message
from csd_emu.util.nearest_word import hint_at
from csd_emu.util.registry import Registry
from firmware_agent.common.errors import PluginError, user_errors
from host.config.plugins.kinds import AUGMENT, CLIENT, COLLATE, LOSS, METRIC, OPTIMIZER, SCHEDULE, STRATEGY, TUNER

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
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY and each.default is each.empty and each.name not in given:
            raise PluginError(f"{where}: {each.name} can only be given by position; options are given by name")
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters)
    named = {each.name: each for each in parameters if each.kind in _NAMED and each.name not in given}
    unknown = [] if open_ended else [key for key in options if key not in named]
    problems = [f"{where}.{key}: {_unknown(key, named, given)}" for key in unknown]
    values: dict[str, Any] = {key: value for key, value in options.items() if key not in named}
    for name, parameter in named.items():
        if name in options:
            try:
                # As JSON, so that a list may become a tuple and a string an enumeration's member, and nothing else is
                # converted.
                values[name] = TypeAdapter(hints.get(name, Any)).validate_json(json.dumps(options[name]), strict=True)
            except ValidationError as error:
                problems += [f"{where}.{name}{_describe(detail)}" for detail in error.errors(include_url=False)]
            except (PydanticSchemaGenerationError, PydanticUserError) as error:
                raise PluginError(f"{where}.{name}: has a type that no job file can give ({hints[name]})") from error
        elif parameter.default is parameter.empty:
            problems.append(f"{where}.{name}: is missing; add it")
    if problems:
        raise PluginError("\n".join(problems))
    return values


def given_names(target: Callable[..., Any], kind: Registry, where: str) -> Collection[str]:
    """Return what the arguments are called that the run gives: the first ones where it gives them by position.

    Raises:
        PluginError: it takes fewer, or some by name alone.
    """
    if not kind.in_order or (isinstance(target, type) and kind is not OPTIMIZER):  # of a class the instance is called
        return () if kind.in_order else kind.given
    parameters, _ = _signature(target, where)
    first = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(first) < kind.in_order and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        raise PluginError(
            f"{where} takes ({', '.join(map(str, parameters))}); call its first arguments "
            f"{' and '.join(list(kind.given)[: kind.in_order])}"
        )
    return [*first[: kind.in_order], *list(kind.given)[kind.in_order :]]


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
        holder = (
            target.__init__  # type: ignore[misc]
            if isinstance(target, type)
            else (target if inspect.isroutine(target) else type(target).__call__)  # of an instance, its class's
        )
        # Torch's own constructors check values themselves, and have types that no file can give.
        torchs = (getattr(holder, "__module__", None) or "").startswith("torch.")
        hints = {} if torchs else typing.get_type_hints(holder, include_extras=True)
    except user_errors() as error:  # an annotation is any expression of the user's
        raise PluginError(f"{where}: the signature of {target!r} cannot be read ({error!r})") from error
    return parameters, hints


def _unknown(key: str, named: Collection[str], given: Collection[str]) -> str:
    if key in given:
        return "is given by the run and no option; leave it out"
    otherwise = f"valid keys: {', '.join(named)}" if named else "it has no options"
    return f"unknown key; {hint_at(key, named, otherwise)}"


def _describe(detail: Any) -> str:
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
    return f"{inner}: {plain_message(detail)} (it is {detail['input']!r})"


USER, _ALONE = "UserSection", "built-in"
_NOT_OWN = (STRATEGY, TUNER, LOSS, METRIC, SCHEDULE, COLLATE, AUGMENT)


class UserSection(Config):
    """A strategy or tuner of the user's own; all keys but `name` are its options.

    Attributes:
        name: ``my_file.py:Class`` (from the job file's folder), ``package.module:Class``, or an entry point's name.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    # The schema says that a mapping with a built-in name is of its own section, not of one whose keys are free.
    name: str = Field(
        min_length=1,
        json_schema_extra=lambda schema: schema.update(
            {"not": {"enum": [name for kind in _NOT_OWN for name in kind.built_in]}}
        ),
    )

    @model_validator(mode="after")
    def _named_options(self) -> UserSection:
        if wrong := [key for key in self.options if not key.isidentifier()]:
            raise ValueError(f"{wrong[0]!r} cannot be the name of an option; write it as in Python")
        return self

    @property
    def options(self) -> dict[str, JsonValue]:
        """The options as the file has them."""
        return dict(self.__pydantic_extra__ or {})


class BuiltInSection(Config):
    """What a job file says of a built-in class: its name, keys that all of its kind have, and its options."""

    model_config = ConfigDict(allow_inf_nan=False)
    if TYPE_CHECKING:
        name: str

    @property
    def options(self) -> dict[str, Any]:
        """The options of the class."""
        common = {"name", *getattr(type(self).__base__, "model_fields", ())}
        return {name: getattr(self, name) for name in type(self).model_fields if name not in common}


class RegisteredSection:
    """The annotation of a key that takes a name of a registry alone, or a mapping with the name and its options.

    Which names and options there are is known to the registry's classes, in packages above this one. So the key's rules
    are made when they are first used: the model that has the key must be one with ``defer_build``.
    """

    def __init__(self, registry: Registry, base: type[BuiltInSection], example: str, remedy: str = "") -> None:
        """Take the registry.

        Args:
            registry: of the classes.
            base: has the keys that all of them take.
            example: of what to write, for errors.
            remedy: where the options of a class are that has none here; a class without any is then a name alone.
        """
        self._registry, self._base, self._example, self._remedy = registry, base, example, remedy

    @functools.cached_property
    def sections(self) -> dict[str, type[BuiltInSection]]:
        """Name -> section, of the built-in classes that have one."""
        made = {name: _make_section(self._registry, name, self._base) for name in self._registry.built_in}
        return {name: made[name] for name in made if not self._remedy or len(made[name].model_fields) > 1}

    @property
    def models(self) -> list[type[Config]]:
        """All sections that a mapping may be."""
        return [*self.sections.values(), UserSection]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the rules of the key."""
        choices: list[Any] = [Annotated[section, Tag(name)] for name, section in self.sections.items()]
        if alone := [name for name in self._registry.built_in if name not in self.sections]:
            choices.append(Annotated[Literal[tuple(alone)], Tag(_ALONE)])
        choices.append(Annotated[UserSection, Tag(USER)])
        union = functools.reduce(operator.or_, choices)
        return handler.generate_schema(Annotated[union, Discriminator(self._tag), BeforeValidator(self._expand)])

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of the short and of the long form."""
        sections = [each for each in handler(core_schema)["oneOf"] if "$ref" in each]
        built_in = {"type": "string", "enum": list(self._registry.built_in)}
        own = {"type": "string", "minLength": 1, "not": {"enum": built_in["enum"]}}
        own["examples"] = [f"my_{self._registry.word}.py:Class", "package.module:Class"]
        if alone := [name for name in self._registry.built_in if name not in self.sections]:
            name = {"type": "string", "enum": alone}
            long_form = {"type": "object", "properties": {"name": name}, "required": ["name"]}
            sections.insert(0, long_form | {"additionalProperties": False})
        return {"anyOf": [built_in, own, *sections]}

    def _tag(self, value: Any) -> str:
        if isinstance(value, str):
            return _ALONE
        name = value["name"] if isinstance(value, dict) else value.name
        return name if name in self.sections else USER

    def _expand(self, value: object) -> object:
        """Return the mapping that a name alone stands for; a name that is not known is refused, in plain words.

        Raises:
            ValueError: it is neither a name nor a mapping with one, or the name is not known.
        """
        if isinstance(value, Config):
            return value
        section: Any = {"name": value} if isinstance(value, str) else value
        if not isinstance(section, dict) or not isinstance(section.get("name"), str):
            raise ValueError(f"must be a name, or a mapping with one, for example {self._example}")
        name: str = section["name"]
        try:
            self._registry.check_name(name)
        except PluginError as error:
            raise ValueError(str(error)) from error
        if name not in self._registry.built_in or name in self.sections:
            return section
        if more := sorted(section.keys() - {"name"}):
            raise ValueError(f"{name} has no key {more[0]!r} here; {self._remedy}")
        return name


def _make_section(registry: Registry, name: str, base: type[BuiltInSection]) -> type[BuiltInSection]:
    """Return the model of a built-in class's keys: those of `base`, its name, and the arguments of its constructor."""
    kind: type = registry.load(name)
    fields: dict[str, Any] = {"name": (Literal[name], ...)} | list_options(kind, registry.given)
    _, _, arguments = inspect.cleandoc(kind.__init__.__doc__ or "").partition("\nArgs:\n")  # type: ignore[misc]
    entries = re.findall(r"^ {4}(\w+): ((?:.|\n {5,})*)", arguments, re.MULTILINE)
    meanings = [f"    {key}: {' '.join(meaning.split())}" for key, meaning in entries if key in fields]
    summary = registry.entries[name].summary
    text = "\n".join([summary, "", "Attributes:", *meanings, ""]) if meanings else summary
    return create_model(f"{kind.__name__}Section", __base__=base, __doc__=text, __module__=__name__, **fields)


class BuiltInStrategySection(BuiltInSection):
    """What every built-in strategy takes.

    Attributes:
        update_norm: the largest L2 norm of a drive's update; a larger one is shortened to it. Null: as they come.
    """

    update_norm: float | None = Field(default=None, gt=0)


if TYPE_CHECKING:
    StrategySection = BuiltInStrategySection | UserSection
    TunerSection = str | BuiltInSection | UserSection
    LossSection = BuiltInSection | UserSection
    MetricSection = BuiltInSection | UserSection
    ClientSection = BuiltInSection | UserSection
    ScheduleSection = BuiltInSection | UserSection
    CollateSection = BuiltInSection | UserSection
    AugmentSection = BuiltInSection | UserSection
else:
    CollateSection = Annotated[Any, RegisteredSection(COLLATE, BuiltInSection, "pad or my_collate.py:function")]
    AugmentSection = Annotated[
        Any, RegisteredSection(AUGMENT, BuiltInSection, "flip, {name: crop, padding: 4} or my_augment.py:function")
    ]
    ClientSection = Annotated[Any, RegisteredSection(CLIENT, BuiltInSection, "my_client.py:train")]
    ScheduleSection = Annotated[
        Any, RegisteredSection(SCHEDULE, BuiltInSection, "cosine or {name: step, every: 10, gamma: 0.1}")
    ]
    MetricSection = Annotated[Any, RegisteredSection(METRIC, BuiltInSection, "perplexity or my_metrics.py:recall")]
    LossSection = Annotated[
        Any, RegisteredSection(LOSS, BuiltInSection, "cross_entropy or {name: my_loss.py:focal, gamma: 2}")
    ]
    StrategySection = Annotated[
        Any, RegisteredSection(STRATEGY, BuiltInStrategySection, "fedavg or {name: fedprox, mu: 0.01}")
    ]
    TunerSection = Annotated[
        Any,
        RegisteredSection(
            TUNER,
            BuiltInSection,
            "stannis or {name: my_tuner.py:MyTuner}",
            "the rules of tuners are keys of sync.tuning",
        ),
    ]

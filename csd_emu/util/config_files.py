"""YAML files into pydantic models, with errors that name the file, the key and the remedy."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from csd_emu.util.nearest_word import hint_at
from csd_emu.util.registry import Registry
from csd_emu.util.yaml_files import find_mark, load_nodes, load_yaml
from firmware_agent.common import units
from firmware_agent.common.errors import ConfigurationError, PluginError, UnitError


def _publish_former_keys(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add a section's former keys to its JSON schema, marked as deprecated."""
    assert issubclass(model, Config)
    for former, key in model.former_keys.items():
        said = {"deprecated": True, "description": f"Former name of `{key}`."}
        schema["properties"][former] = schema["properties"][key] | said


class Config(BaseModel):
    """A section of a configuration file: frozen, and an unknown key is an error.

    Attributes:
        former_keys: former name of a key -> its name. Both are read for one release, the former one with a warning.
        synonyms: what a key is called elsewhere -> its name here, which an error suggests.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, strict=True, json_schema_extra=_publish_former_keys
    )
    former_keys: ClassVar[Mapping[str, str]] = {}
    synonyms: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _read_former_keys(cls, section: Any) -> Any:
        if not isinstance(section, dict):
            return section
        for former in cls.former_keys.keys() & section.keys():
            key = cls.former_keys[former]
            if key in section:
                raise ValueError(f"{former} and {key} are the same key; leave {former} out")
            # A resolved file of before names every key; only what somebody wrote is worth a warning.
            if section[former] != cls.model_fields[key].default:
                text = f"the key {former} is called {key} now; the next release does not read the former name"
                warnings.warn(text, FutureWarning, stacklevel=2)
            section = {key if name == former else name: value for name, value in section.items()}
        return section

    def rules(self) -> Mapping[str, object]:
        """Return what is said of a section whose keys do not go together -> whether that is so of this one."""
        return {}

    @model_validator(mode="after")
    def _keeps_rules(self) -> Self:
        for message, broken in self.rules().items():
            if broken:
                raise ValueError(message)
        return self


def _quantity(table: dict[str, float], example: str) -> Any:
    def parse(value: object) -> float:
        try:
            return units.parse_quantity(value, table, example)
        except UnitError as error:
            raise ValueError(str(error)) from error

    base = next(unit for unit, factor in table.items() if factor == 1)
    # A resolved configuration has units too, so that it can be read back.
    write = PlainSerializer(lambda value: f"{value:.17g} {base}", return_type=str, when_used="json")
    return BeforeValidator(parse), write, WithJsonSchema({"type": "string", "examples": [example]})


_BYTES, _SECONDS = _quantity(units.BYTES, "2 GiB"), _quantity(units.SECONDS, "10 min")
_BYTES_PER_SECOND = _quantity(units.BYTES_PER_SECOND, "500 MB/s")
_WATTS = _quantity({"mW": 1e-3, "W": 1.0, "kW": 1e3}, "450 W")
_JOULES = _quantity({"mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6}, "20 kJ")
Bytes = Annotated[float, *_BYTES]
Seconds = Annotated[float, *_SECONDS]
BytesPerSecond = Annotated[float, *_BYTES_PER_SECOND]
Watts = Annotated[float, *_WATTS]
Joules = Annotated[float, *_JOULES]

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class ShortForm:
    """Adds to the published schema of a section what stands for it alone, which `alone` returns the schema of."""

    alone: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [self.alone(), handler(core_schema)]}


class RegisteredName:
    """The rule of a key that names a class of `registry`, and its published schema."""

    def __init__(self, registry: Registry, *, offered: bool = False) -> None:
        """Take the registry; of `offered` names alone, if it is an option in place of a file's key."""
        self._registry, self._offered = registry, offered

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of a text that is a known name."""
        return handler.generate_schema(Annotated[str, AfterValidator(self._check)])

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the names of today."""
        return {"type": "string", "enum": list(self._registry.offered if self._offered else self._registry.names)}

    def _check(self, name: str) -> str:
        if self._offered and name not in self._registry.offered:
            raise ValueError(f"must be one of: {', '.join(map(repr, self._registry.offered))}")
        try:
            self._registry.check_name(name)
        except PluginError as error:
            raise ValueError(str(error)) from error
        return name


def list_keys(kind: type[BaseModel]) -> Iterator[str]:
    """Yield the keys of a file, with dots between a section and its keys; without those of entries of lists."""
    for name, field in kind.model_fields.items():
        yield name
        for section in _models_of(field) if get_origin(field.annotation) not in (list, dict) else ():
            yield from (f"{name}.{key}" for key in list_keys(section))


def load_config(path: Path, kind: type[Model]) -> Model:
    """Read the YAML file at `path` as a `kind`.

    Raises:
        ConfigurationError: the file cannot be read, is no YAML, or breaks the rules of `kind`; every broken rule is
            named with its key.
    """
    return parse_config(load_mapping(path), kind, path)


def load_mapping(path: Path) -> dict[str, Any]:
    """Return the keys and values in the YAML file at `path`.

    Raises:
        ConfigurationError: the file cannot be read, is no YAML, or no mapping.
    """
    if not isinstance(content := load_yaml(path, special=True), dict):
        raise ConfigurationError(f"{path}: must be a mapping of keys to values; see csd-emu docs configuration")
    return content


def parse_config(content: dict[str, Any], kind: type[Model], where: str | Path) -> Model:
    """Return `content` as a `kind` (see `load_config`).

    Args:
        content: the keys and values.
        kind: see above.
        where: their origin, which errors name; of a file also the line and column of what it has itself.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        if swapped := _kind_meant(content, kind):
            raise ConfigurationError(f"{where}: {swapped}") from error
        details = error.errors(include_url=False)
        file = load_nodes(where) if isinstance(where, Path) and where.is_file() else ({}, None)  # a pipe's text is gone
        problems = [_located_problem(dict(detail), kind, content, *file) for detail in details[:_MOST_PROBLEMS]]
        problems += [f"and {len(details) - _MOST_PROBLEMS} more"] * (len(details) > _MOST_PROBLEMS)
        raise ConfigurationError("\n".join(f"{where}: {problem}" for problem in problems)) from error


def _kind_meant(content: object, kind: type[BaseModel]) -> str:
    """Return what to say of a file of another kind; empty if it is of this one, as far as can be seen."""
    meant, telling = FILE_KINDS.get(kind.__name__, ("", ""))
    if not meant or not isinstance(content, dict) or telling in content:
        return ""
    found = (name for name, key in FILE_KINDS.values() if isinstance(content.get(key), str | list | dict))
    return next((f"this is {each}, where {meant} is expected; are two files swapped?" for each in found), "")


# Of whole files: what each is called, and the key by which one is known.
FILE_KINDS = {
    "JobConfig": ("a job file", "model"),
    "ArrayConfig": ("an array file", "devices"),
    "ServersConfig": ("a servers file", "servers"),
    "Inventory": ("an inventory of real drives", "drives"),
}
_TOP = "(top level)"
# More would hide the first, and take long to write.
_MOST_PROBLEMS, _MOST_SHOWN = 20, 200
# Parts of a location that pydantic adds.
_INTERNAL = re.compile(r"function-|\[key\]$")
# pydantic's words for what people write wrong most often, in terms of the file.
_PLAIN = {
    "model_type": "must be a mapping of keys to values, for example {key: value}",
    "model_attributes_type": "must be a mapping of keys to values, for example {key: value}",
    "dict_type": "must be a mapping of keys to values, for example {key: value}",
    "list_type": "must be a list, for example [value, value]",
    "int_type": "must be a whole number",
    "string_pattern_mismatch": "must be lower-case letters, digits and dashes, begin with a letter, and be short",
}


def _located_problem(detail: dict[str, Any], kind: type[BaseModel], content: Any, written: Any, node: Any) -> str:
    location = [part for part in detail["loc"] if not (isinstance(part, str) and _INTERNAL.match(part))]
    location, section = _follow(kind, location)
    told, mark = _problem(detail, location, section), ""
    if _at(content, location) == _at(written, location):  # else the command line has something in its place
        mark = find_mark(node, location)
    return f"{told} ({mark})" if mark else told


def _problem(detail: dict[str, Any], location: list[int | str], section: type[BaseModel] | None) -> str:
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".") or _TOP
    if detail["type"] == "extra_forbidden":
        names = list(section.model_fields) if section is not None else []
        if meant := getattr(section, "synonyms", {}).get(str(location[-1]).lower()):
            return f"{key}: unknown key; it is called {meant} here"
        return f"{key}: unknown key; " + hint_at(str(location[-1]), names, f"valid keys: {', '.join(names)}")
    if detail["type"] == "missing":
        return f"{key}: is missing; add it"
    message = plain_message(detail)
    # A rule over a whole section has said which part it means, and the section may hold what nobody should see.
    shown = "" if isinstance(detail["input"], dict) else f" (it is {_shown(detail['input'])})"
    return f"{key}: {message}{shown}" if key != _TOP or shown else message


def _at(content: Any, location: Sequence[int | str]) -> Any:
    """Return the value at `location`; None if there is none."""
    for part in location:
        inside = isinstance(content, dict) or (isinstance(content, list) and part in range(len(content)))
        content = (content.get(part) if isinstance(content, dict) else content[part]) if inside else None
    return content


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def plain_message(detail: Mapping[str, Any]) -> str:
    """Return what one of pydantic's errors says, in terms of the file."""
    message: str = _PLAIN.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    return message


def _follow(kind: type[BaseModel], location: list[int | str]) -> tuple[list[int | str], type[BaseModel] | None]:
    """Return the keys of the file on the way to `location`, and the model that its last part is a key of.

    Where a mapping may be one of several models, pydantic puts the one that it took, by its tag, into the location.
    """
    keys: list[int | str] = []
    section: type[BaseModel] | None = kind
    choices: list[type[BaseModel]] = []
    named = False
    for position, part in enumerate(location):
        if tagged := [model for model in choices if _tag(model) == part]:
            section, choices = tagged[0], []
            continue
        keys.append(part)
        if named:  # the name of one section among equal ones
            named = False
            continue
        if isinstance(part, int) or position == len(location) - 1:
            continue
        field = section.model_fields.get(part) if section is not None else None
        choices = _models_of(field) if field is not None else []
        section = choices[0] if choices else None
        named = field is not None and get_origin(field.annotation) is dict and section is not None
    return keys, section


def _tag(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("name")
    if field is None or get_origin(field.annotation) is not Literal:
        return model.__name__
    return get_args(field.annotation)[0]


def _models_of(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the models that a key may hold; an annotation that makes its rules itself lists them as `models`."""
    own = [model for rule in field.metadata for model in getattr(rule, "models", ())]
    return own or _nested_models(field.annotation)


def _nested_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _nested_models(argument)]

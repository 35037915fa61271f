"""What a job file says of a plug-in: its name, and options that its own signature decides about."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, JsonValue, model_validator

from csd_emu.config import Config
from firmware_agent.errors import PluginError
from host.plugins.kinds import STRATEGY, TUNER, PluginKind, check_name

USER = "UserSection"


class UserSection(Config):
    """A strategy or tuner of the user's own; all keys but `name` are its options.

    Attributes:
        name: ``my_file.py:Class`` (from the job file's folder), ``package.module:Class``, or an entry point's name.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    # A mapping with a built-in name is of that name's own section, not of this one, whose keys are free.
    name: str = Field(min_length=1, json_schema_extra={"not": {"enum": [*STRATEGY.built_in, *TUNER.built_in]}})

    @model_validator(mode="after")
    def _named_options(self) -> UserSection:
        wrong = [key for key in self.options if not key.isidentifier()]
        if wrong:
            raise ValueError(f"{wrong[0]!r} cannot be the name of an option; write it as in Python")
        return self

    @property
    def options(self) -> dict[str, JsonValue]:
        """The options as the file has them."""
        return dict(self.__pydantic_extra__ or {})


def expand(value: object, kind: PluginKind, example: str) -> Any:
    """Return the mapping that a name alone stands for; a name that is not known is refused, in plain words.

    Raises:
        ValueError: it is neither a name nor a mapping with one, or the name is not known.
    """
    if isinstance(value, Config):
        return value
    section: Any = {"name": value} if isinstance(value, str) else value
    if not isinstance(section, dict) or not isinstance(section.get("name"), str):
        raise ValueError(f"must be a name, or a mapping with one, for example {example}")
    try:
        check_name(kind, section["name"])
    except PluginError as error:
        raise ValueError(str(error)) from error
    return section


def named_schema(kind: PluginKind, sections: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of a key that takes a name alone, or one of `sections`."""
    name = {"type": "string", "minLength": 1, "not": {"enum": list(kind.built_in)}}
    examples = [f"my_{kind.word}.py:Class", "package.module:Class"]
    built_in = {"type": "string", "enum": list(kind.built_in)}
    return {"anyOf": [built_in, name | {"examples": examples}, *sections]}

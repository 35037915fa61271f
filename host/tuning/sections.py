"""The job file's `tuner`: a built-in name, or a tuner of the user's own with its options."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, GetJsonSchemaHandler, Tag
from pydantic_core import CoreSchema

from host.plugins.kinds import TUNER
from host.plugins.section import USER, UserSection, expand, named_schema

TunerName = Literal["none", "stannis", "hypertune"]
_BUILT_IN = "built-in"


def _expand(value: object) -> object:
    section = expand(value, TUNER, "stannis or {name: my_tuner.py:MyTuner}")
    if not isinstance(section, dict) or section["name"] not in TUNER.built_in:
        return section
    if more := sorted(section.keys() - {"name"}):
        raise ValueError(f"{section['name']} has no key {more[0]!r} here; the rules of tuners are keys of sync.tuning")
    return section["name"]


def _tag(value: object) -> str:
    return _BUILT_IN if isinstance(value, str) else USER


class _Schema:
    """Adds the short form to the published schema."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        users = [each for each in handler(core_schema)["oneOf"] if "$ref" in each]
        name = {"type": "string", "enum": list(TUNER.built_in)}
        long_form = {
            "type": "object",
            "properties": {"name": name},
            "required": ["name"],
            "additionalProperties": False,
        }
        return named_schema(TUNER, [long_form, *users])


TunerSection = Annotated[
    Annotated[TunerName, Tag(_BUILT_IN)] | Annotated[UserSection, Tag(USER)],
    Discriminator(_tag),
    BeforeValidator(_expand),
    _Schema(),
]

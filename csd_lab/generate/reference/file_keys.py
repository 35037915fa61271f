"""The keys of a configuration file as Markdown, from the pydantic models that read it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from host.config.plugins.plugin_section import USER

Schema = dict[str, Any]
_WORDS = {"string": "text", "object": "mapping", "boolean": "true or false", "null": "null"}
_EMPTY = {"array": "`[]`", "object": "`{}`"}
_BOUNDS = (("minimum", "≥ {}"), ("exclusiveMinimum", "> {}"), ("maximum", "≤ {}"), ("exclusiveMaximum", "< {}"))


def render_file(kind: type[BaseModel]) -> str:
    """Return the tables of all sections, the file's own keys first."""
    schema = kind.model_json_schema()
    sections = {"": schema} | {name: part for name, part in _sections(schema, schema).items()}
    texts = [_section(path, part, schema) for path, part in sections.items() if part.get("properties")]
    return "\n".join(texts)


def _sections(part: Schema, schema: Schema, path: str = "") -> dict[str, Schema]:
    """Return path of the key -> schema, for everything below `part` that has keys of its own."""
    found: dict[str, Schema] = {}
    for key, value in part.get("properties", {}).items():
        for below, listed in _references(value, schema):
            name = below["properties"].get("name", {})
            which = f" ({name['const']})" if "const" in name else " (one's own)" if below["title"] == USER else ""
            place = f"{path}{key}{'[]' if listed else ''}"
            found |= {place + which: below} | _sections(below, schema, f"{place}.")
    return found


def _references(value: Schema, schema: Schema, listed: bool = False) -> Iterator[tuple[Schema, bool]]:
    """Yield the sections that a key may hold, and whether in a list."""
    if "$ref" in value:
        target = schema["$defs"][value["$ref"].rpartition("/")[2]]
        if "properties" in target:
            yield target, listed
    for choice in _choices(value):
        yield from _references(choice, schema, listed)
    if isinstance(value.get("items"), dict):
        yield from _references(value["items"], schema, True)


def _choices(value: Schema) -> list[Schema]:
    return [*value.get("anyOf", ()), *value.get("oneOf", ()), *value.get("allOf", ())]


def _section(path: str, part: Schema, schema: Schema) -> str:
    text, meanings = _read_description(part.get("description", ""))
    lines = [f"## `{path}`" if path else "## The file", "", text, ""]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    required = part.get("required", ())
    for key, value in part["properties"].items():
        default = "required" if key in required else _default(value)
        lines.append(f"| `{key}` | {_type(value, schema)} | {default} | {meanings.get(key, '')} |")
    return "\n".join([*lines, ""])


def _read_description(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its attributes, and the attributes: name -> meaning."""
    head, _, tail = inspect.cleandoc(text).partition("\nAttributes:\n")
    entries = re.findall(r"^ {4}([\w, ]+): ((?:.|\n(?! {4}\w|\S))*)", tail, re.MULTILINE)
    meanings = {name.strip(): _cell(meaning) for names, meaning in entries for name in names.split(",")}
    return _cell(head), meanings


def _type(value: Schema, schema: Schema) -> str:
    if "$ref" in value:
        target = schema["$defs"][value["$ref"].rpartition("/")[2]]
        return "mapping" if "properties" in target else _type(target, schema)
    if choices := _choices(value):
        return " or ".join(dict.fromkeys(_type(each, schema) for each in choices))
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}), schema)}"
    kind = str(value.get("type", "anything"))
    name = _WORDS.get(kind, kind)
    if kind == "string" and value.get("examples"):
        name += f" such as {', '.join(f'`{each}`' for each in value['examples'])}"
    bounds = [words.format(_number(value[key])) for key, words in _BOUNDS if key in value]
    return " ".join([name, ", ".join(bounds)]).strip()


def _default(value: Schema) -> str:
    return _json(value["default"]) if "default" in value else _EMPTY.get(value.get("type", ""), "of its keys")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _json(value: object) -> str:
    return f"`{json.dumps(value)}`" if not isinstance(value, dict) else "of its keys"


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")

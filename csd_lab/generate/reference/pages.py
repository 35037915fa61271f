"""All generated reference pages: commands, keys of files, and what is registered under a name."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import ENGINE
from csd_emu.util.registry import Registry
from host.cli.main import app
from host.config.job_file import JobConfig
from host.config.plugins.kinds import SPLIT_POLICY, STRATEGY, TRANSFER_TUNER, TUNER
from host.config.plugins.plugin_section import USER

_ABSENT = {"install-completion", "show-completion", "help"}


def render_commands() -> str:
    """Return one section for each command."""
    return "\n".join(
        _command_section(words, command) for words, command in _walk("csd-emu", typer.main.get_command(app))
    )


def _walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with the words that call it."""
    for name, each in sorted(getattr(command, "commands", {}).items()):
        yield from _walk(f"{words} {name}", each)
    if not hasattr(command, "commands"):
        yield words, command


def _command_section(words: str, command: Any) -> str:
    parameters = [each for each in command.params if each.name not in _ABSENT]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    usage = " ".join([words, *(["[OPTIONS]"] if options else []), *map(_usage, arguments)])
    lines = [f"## {words}", "", (command.help or "").strip(), "", f"    {usage}", ""]
    if parameters:
        lines += ["| | meaning | default |", "|---|---|---|"]
        lines += [f"| {_names(each)} | {_cell(each.help or '')} | {_option_default(each)} |" for each in parameters]
        lines.append("")
    return "\n".join(lines)


def _usage(argument: Any) -> str:
    name = _metavar(argument) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_metavar(parameter)}`"
    value = "" if parameter.is_flag else f" {_value(parameter)}"
    return f"`{', '.join(parameter.opts)}{value}`"


def _value(parameter: Any) -> str:
    kind = getattr(parameter, "type_descriptor", None) or parameter.type  # typer below 0.21 has the latter alone
    if choices := getattr(kind, "choices", None):
        return "{" + ",".join(str(getattr(each, "value", each)) for each in choices) + "}"
    return str(parameter.metavar or parameter.name.upper())


def _option_default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = getattr(parameter.default, "value", parameter.default)
    return "" if default is None or isinstance(default, bool) or callable(default) else f"`{default}`"


Schema = dict[str, Any]
_WORDS = {"string": "text", "object": "mapping", "boolean": "true or false", "null": "null"}
_EMPTY = {"array": "`[]`", "object": "`{}`"}
_BOUNDS = (("minimum", "≥ {}"), ("exclusiveMinimum", "> {}"), ("maximum", "≤ {}"), ("exclusiveMaximum", "< {}"))


def render_file(kind: type[BaseModel]) -> str:
    """Return the tables of all sections, the file's own keys first."""
    schema = kind.model_json_schema()
    sections = {"": schema} | {name: part for name, part in _sections(schema, schema).items()}
    texts = [_file_section(path, part, schema) for path, part in sections.items() if part.get("properties")]
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


def _file_section(path: str, part: Schema, schema: Schema) -> str:
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


FOLDER = Path(__file__).parents[3] / "docs" / "reference"
_HEAD = "<!-- Written by `python -m csd_lab.generate.reference` from the code; change it there. -->\n\n"
_CODES = """\
An error of yours or of the machine's is one message on standard error and exit code 2. Exit code 1 means that a run
missed its target or failed, 130 that it was interrupted; everything that was started has ended then. What `--json`
prints has a published schema: `csd-emu schema COMMAND`.

"""
_OWN = "[Extending](../extending.md) has how to add one.\n\n"
_MORE = "[Configuration](../configuration.md) explains the keys with examples.\n\n"


def pages() -> dict[str, str]:
    """Return file name -> content."""
    array = "# Keys of the array file\n\n" + _HEAD + _MORE + render_file(ArrayConfig)
    job = "# Keys of the job file\n\n" + _HEAD + _MORE + render_file(JobConfig)
    return {
        "array-file.md": array,
        "cli.md": "# Command line\n\n" + _HEAD + _CODES + render_commands(),
        "job-file.md": job,
        "registered.md": "# Engines and policies\n\n" + _HEAD + _OWN + render_registered(),
    }


# Title, key of the file, registry.
_KINDS = (
    ("Engines", "`engine` of the array file: what drives run on", ENGINE),
    ("Strategies", "`strategy` of the job file: how the host makes new weights of the drives'", STRATEGY),
    ("Batch tuners", "`tuner` of the job file: how many records each device gets in a step", TUNER),
    ("Transfer tuners", "`communication` of the job file: how tensors are sent", TRANSFER_TUNER),
    ("Split policies", "`placement` of the job file: which layers the host has", SPLIT_POLICY),
)


def render_registered() -> str:
    """Return one table for each registry, its built-in classes in alphabetical order."""
    return "\n".join(_registry_section(*each) for each in _KINDS)


def _registry_section(title: str, key: str, registry: Registry) -> str:
    lines = [f"## {title}", "", f"{key}. Entry points: `{registry.group}`.", ""]
    lines += ["| name | is | class |", "|---|---|---|"]
    lines += [
        f"| `{each.name}` | {each.summary} | `{each.module}.{each.class_name}` |" for each in registry.entries.values()
    ]
    return "\n".join([*lines, ""])

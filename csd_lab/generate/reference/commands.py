"""The commands of csd-emu as Markdown, from what Typer knows of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from host.cli.main import app

_ABSENT = {"install-completion", "show-completion", "help"}


def render_commands() -> str:
    """Return one section for each command."""
    return "\n".join(_section(words, command) for words, command in _walk("csd-emu", typer.main.get_command(app)))


def _walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with the words that call it."""
    for name, each in sorted(getattr(command, "commands", {}).items()):
        yield from _walk(f"{words} {name}", each)
    if not hasattr(command, "commands"):
        yield words, command


def _section(words: str, command: Any) -> str:
    parameters = [each for each in command.params if each.name not in _ABSENT]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    usage = " ".join([words, *(["[OPTIONS]"] if options else []), *map(_usage, arguments)])
    lines = [f"## {words}", "", (command.help or "").strip(), "", f"    {usage}", ""]
    if parameters:
        lines += ["| | meaning | default |", "|---|---|---|"]
        lines += [f"| {_names(each)} | {_cell(each.help or '')} | {_default(each)} |" for each in parameters]
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
    if choices := getattr(parameter.type_descriptor, "choices", None):
        return "{" + ",".join(str(getattr(each, "value", each)) for each in choices) + "}"
    return str(parameter.metavar or parameter.name.upper())


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = getattr(parameter.default, "value", parameter.default)
    return "" if default is None or isinstance(default, bool) or callable(default) else f"`{default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

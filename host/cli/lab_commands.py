"""Commands that the command line finds by entry point: those of csd_lab, which the product does not import."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import typer
from typer.core import TyperGroup

from firmware_agent.common.errors import EnvironmentUnfit

# An entry point of the first is a function that adds a command, or a group of them, to the Typer app that it is given;
# one of the second is the structure that a command prints with --json.
COMMANDS_GROUP, OUTPUTS_GROUP = "csd_emu.commands", "csd_emu.outputs"
# Those that csd-emu itself installs.
_OURS = ("bench", "clocks", "fidelity", "power", "recalibrate", "reproduce", "simulate", "sweep", "tune")


def list_entries(group: str) -> dict[str, metadata.EntryPoint]:
    """Return name -> entry point of a group, in order of the names; nothing is imported."""
    return {each.name: each for each in sorted(metadata.entry_points(group=group), key=lambda each: each.name)}


def add_commands(app: typer.Typer) -> None:
    """Add the installed commands to `app`."""
    for entry in list_entries(COMMANDS_GROUP).values():
        entry.load()(app)


class CommandGroup(TyperGroup):
    """The commands of csd-emu; one that is missing because the installation is older than the code is named."""

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Return the command that the first argument names.

        Raises:
            EnvironmentUnfit: csd-emu has this command, but it is not installed.
        """
        if arguments and arguments[0] in _OURS and arguments[0] not in self.commands:
            raise EnvironmentUnfit(
                f"command {arguments[0]!r} is not installed: the entry points of csd-emu are older than its code; "
                "reinstall: make setup-native (without a clone: pip install --force-reinstall csd-emu)"
            )
        return super().resolve_command(context, arguments)

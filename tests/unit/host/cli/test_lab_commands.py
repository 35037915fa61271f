"""Commands and outputs that are found by entry point."""

import sys
from importlib import metadata
from types import ModuleType

import msgspec
import pytest
import typer

from firmware_agent.common.errors import EnvironmentUnfit
from host.cli.lab_commands import COMMANDS_GROUP, OUTPUTS_GROUP, CommandGroup, add_commands
from host.cli.schemas import find_output, list_outputs
from tests import ROOT


class Wide(msgspec.Struct):
    width: int


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Name -> value of the entry points of either group, as if they were installed."""
    there: dict[str, str] = {}
    monkeypatch.setattr(
        *(metadata, "entry_points"),
        lambda group: [metadata.EntryPoint(name, value, group) for name, value in there.items()],
    )
    return there


def make_app() -> typer.Typer:
    app = typer.Typer(cls=CommandGroup)
    app.command()(lambda: None)
    app.command("other")(lambda: None)
    return app


def test_a_command_is_added_by_its_entry_point(
    entries: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("some_lab")
    module.add = lambda app: app.command("measure")(lambda: print("measured"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_lab", module)
    entries["measure"] = "some_lab:add"
    app = make_app()
    add_commands(app)
    app(["measure"], standalone_mode=False)
    assert capsys.readouterr().out == "measured\n"


@pytest.mark.parametrize("name", ["bench", "simulate", "reproduce"])
def test_a_command_that_is_not_installed_says_how_it_comes_back(name: str, entries: dict[str, str]) -> None:
    app = make_app()
    add_commands(app)
    with pytest.raises(EnvironmentUnfit, match=f"{name}.*reinstall: make setup-native"):
        app([name, "--json"], standalone_mode=False)


def test_what_an_installed_command_prints_has_a_schema_that_is_loaded_when_asked_for(entries: dict[str, str]) -> None:
    entries |= {"wide": f"{__name__}:Wide", "later": "no_such_module:Never"}
    assert {"run", "wide", "later"} <= set(list_outputs())
    assert find_output("wide") is Wide
    with pytest.raises(KeyError):
        find_output("narrow")


def test_the_project_names_the_groups_that_are_read() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for group in (COMMANDS_GROUP, OUTPUTS_GROUP):
        assert f'[project.entry-points."{group}"]' in text

"""Help of the commands: an example each, and a page that says more."""

import typer

from host.cli import main
from host.cli.shipped_examples import list_pages


def test_every_command_has_an_example_and_a_page() -> None:
    command = typer.main.get_command(main.app)
    names = set(command.commands)  # type: ignore[attr-defined]
    assert set(main.HELP) == names
    for name, (example, page) in main.HELP.items():
        assert example.split()[0] == name
        assert page in list_pages()
        told = str(command.commands[name].epilog)  # type: ignore[attr-defined]
        assert f"csd-emu {example}" in told
        assert f"csd-emu docs {page}" in told


def test_every_option_of_an_example_is_one_of_its_command() -> None:
    command = typer.main.get_command(main.app)
    for name, (example, _) in main.HELP.items():
        found, words = command.commands[name], example.split()[1:]  # type: ignore[attr-defined]
        while hasattr(found, "commands") and words and words[0] in found.commands:
            found, words = found.commands[words[0]], words[1:]
        known = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, example

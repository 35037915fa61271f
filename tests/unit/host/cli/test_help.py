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


def test_every_example_is_a_command_line_that_can_be() -> None:
    command = typer.main.get_command(main.app)
    for name, (example, _) in main.HELP.items():
        found, words = command.commands[name], example.split()[1:]  # type: ignore[attr-defined]
        while hasattr(found, "commands") and words and words[0] in found.commands:
            found, words = found.commands[words[0]], words[1:]
        found.make_context(name, words)  # it raises of what is missing, too much, or not known

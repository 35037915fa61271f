"""`csd-emu example` and `csd-emu schema`: what ships inside the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from host.cli.common_options import Json
from host.cli.completion import complete_example, complete_schema
from host.cli.json_output import print_json
from host.cli.named_text import ExamplesReport, NamedText


def example(
    name: Annotated[
        str | None, typer.Argument(help="which one; without, they are listed", autocompletion=complete_example)
    ] = None,
    folder: Annotated[Path | None, typer.Argument(help="where its files go; else a folder of its name")] = None,
    as_json: Json = False,
) -> None:
    """Write the files of an example, such as quickstart, or list the examples."""
    from host.cli.named_text import print_examples
    from host.cli.shipped_examples import list_examples, write_example

    written = [] if name is None else write_example(name, folder or Path(name))
    entries = [NamedText(each.name, each.title) for each in list_examples().values()]
    report = ExamplesReport(entries, [str(path) for path in written])
    print_json(report) if as_json else print_examples(report)


def schema(
    name: Annotated[
        str | None, typer.Argument(help="array.yaml, job.yaml or a command", autocompletion=complete_schema)
    ] = None,
) -> None:
    """Print the JSON schema of array files, job files, or what a command prints with --json; or list them."""
    from host.cli.schemas import find_schema, list_schemas

    sys.stdout.write("".join(f"{each}\n" for each in list_schemas()) if name is None else find_schema(name))

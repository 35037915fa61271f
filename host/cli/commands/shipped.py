"""`csd-emu profiles`, `example` and `schema`: what ships inside the package, and profiles of one's own."""

from __future__ import annotations

import pydoc
import sys
from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.nearest_word import hint_at
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.cli.common_options import Json, complete_example, complete_profile, complete_schema
from host.cli.shipped_examples import (
    ExamplesReport,
    NamedText,
    list_examples,
    list_pages,
    print_examples,
    print_names,
    write_example,
)
from host.core.console import console, figures_table, print_json
from host.core.interrupts import INTERRUPTS


def profiles(
    name: Annotated[
        str | None, typer.Argument(help="one profile; all if none is given", autocompletion=complete_profile)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the figures of profiles, each with its unit and its source."""
    with INTERRUPTS.deferred():
        from host.cli.profiles_report import print_profiles, report_profiles

    report = report_profiles(name, Paths.default())
    print_json(report) if as_json else print_profiles(report)


def example(
    name: Annotated[
        str | None, typer.Argument(help="which one; without, they are listed", autocompletion=complete_example)
    ] = None,
    folder: Annotated[Path | None, typer.Argument(help="where its files go; else a folder of its name")] = None,
    as_json: Json = False,
) -> None:
    """Write the files of an example, such as quickstart, or list the examples."""
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


def docs(
    page: Annotated[str | None, typer.Argument(help="which one; without, they are listed")] = None,
) -> None:
    """Show a page of the documentation, or list the pages."""
    pages = list_pages()
    if page is None:
        print_names(
            [
                NamedText(name, path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# "))
                for name, path in sorted(pages.items())
            ]
        )
        return
    if page not in pages:
        raise ConfigurationError(f"there is no page {page!r}; {hint_at(page, pages, 'csd-emu docs lists them')}")
    pydoc.pager(pages[page].read_text(encoding="utf-8"))


def doctor(as_json: Json = False) -> None:
    """Say what this machine can run, and what to install for the rest."""
    with INTERRUPTS.deferred():
        from host.app.machine_check import check_machine

    report = check_machine(Paths.default().state)
    if as_json:
        print_json(report)
        return
    columns = ("", "found", "needed for", "remedy")
    table = figures_table(f"csd-emu {report.version}", columns, left=columns)
    for fact in report.facts:
        table.add_row(fact.name, fact.found or "[red]none[/]", fact.needed_for, fact.remedy)
    console.print(table)
    can = [name for name, able in (("native", report.native), ("qemu", report.qemu)) if able]
    console.print(f"engines that can run here: {', '.join(can) or 'none'}")

"""`csd-emu profiles`, `power fit`, `example` and `schema`: what ships inside the package, and profiles of one's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from csd_emu.util.paths import Paths
from host.cli.common_options import Json, complete_example, complete_profile, complete_schema
from host.cli.shipped_examples import ExamplesReport, NamedText
from host.core.console import console, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from host.cli.power_reports import PowerFitReport, ProfilesReport

power_app = typer.Typer(no_args_is_help=True, help="Power models of drives and hosts.")


def profiles(
    name: Annotated[
        str | None, typer.Argument(help="one profile; all if none is given", autocompletion=complete_profile)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the figures of profiles, each with its unit and its source."""
    with INTERRUPTS.deferred():
        from host.cli.power_reports import report_profiles

    report = report_profiles(name, Paths.default())
    print_json(report) if as_json else print_profiles(report)


@power_app.command("fit")
def power_fit(
    log: Annotated[Path, typer.Argument(metavar="LOG.CSV", help="seconds,utilisation,watts of a meter")],
    profile: Annotated[
        str, typer.Option(help="the profile whose other figures are kept", autocompletion=complete_profile)
    ],
    name: Annotated[str, typer.Option(help="of the new profile")],
    as_json: Json = False,
) -> None:
    """Fit idle and active watts to a meter's log, and write them as a profile of your own."""
    with INTERRUPTS.deferred():
        from host.cli.power_reports import fit_log

    report = fit_log(log, profile, name, Paths.default())
    print_json(report) if as_json else print_power_fit(report)


def print_profiles(report: ProfilesReport) -> None:
    """Print every figure with its unit and source; assumed ones stand out."""
    for profile in report.profiles:
        table = Table("figure", "value", "unit", "source", title=f"{profile.name} ({profile.kind})")
        table.columns[1].justify = "right"
        for figure in profile.figures:
            source = escape(figure.source)
            table.add_row(
                figure.figure, f"{figure.value:.6g}", figure.unit, f"[yellow]{source}[/]" if figure.assumed else source
            )
        console.print(table)
        assumed = sum(figure.assumed for figure in profile.figures)
        console.print(f"{profile.name}: {assumed} of {len(profile.figures)} figures are assumed\n")


def print_power_fit(report: PowerFitReport) -> None:
    """Print fitted watts with their standard errors, and where the profile is."""
    console.print(f"idle   {report.idle_watts:.3f} W, standard error {report.idle_standard_error_watts:.3f} W")
    console.print(f"active {report.active_watts:.3f} W more, standard error {report.active_standard_error_watts:.3f} W")
    console.print(f"residual {report.residual_watts:.3f} W over {report.samples} rows in {report.seconds:.6g} s")
    console.print(f"profile {report.profile} (on {report.base}): {escape(report.path)}", soft_wrap=True)


def example(
    name: Annotated[
        str | None, typer.Argument(help="which one; without, they are listed", autocompletion=complete_example)
    ] = None,
    folder: Annotated[Path | None, typer.Argument(help="where its files go; else a folder of its name")] = None,
    as_json: Json = False,
) -> None:
    """Write the files of an example, such as quickstart, or list the examples."""
    from host.cli.shipped_examples import list_examples, print_examples, write_example

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

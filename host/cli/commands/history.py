"""`csd-emu runs` and `csd-emu compare`: the runs of a folder, and some of them beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from firmware_agent.common.errors import ConfigurationError
from host.cli.common_options import Json, Trust, complete_run
from host.core.console import console, figures_table, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from host.monitoring.runs.run_comparison import FigureColumn, RunComparison
    from host.monitoring.runs.run_listing import RunList, RunRow

Runs = Annotated[Path, typer.Option("--runs", help="folder of run directories")]
Names = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="a run's name, or its directory", autocompletion=complete_run),
]
SortKey = Literal["began", "name", "accuracy", "records_per_device_second", "joules_per_record", "rounds"]

runs_app = typer.Typer(help="List runs, remove them, or export their tables.", invoke_without_command=True)


@runs_app.callback()
def runs(
    context: typer.Context,
    folder: Runs = Path("runs"),
    name: Annotated[str | None, typer.Option(help="those called so alone", autocompletion=complete_run)] = None,
    state: Annotated[str | None, typer.Option(help="those in this state alone, such as finished or failed")] = None,
    sort: Annotated[SortKey, typer.Option(help="by this, the largest last")] = "began",
    as_json: Json = False,
) -> None:
    """List the runs of a folder. Example: csd-emu runs --state finished --sort accuracy."""
    context.obj = folder
    if context.invoked_subcommand is not None:
        return
    with INTERRUPTS.deferred():
        from host.monitoring.runs.run_listing import RunList, list_runs

    listed = list_runs(folder)
    chosen = [row for row in listed.runs if name in (None, row.name) and state in (None, row.state)]
    chosen.sort(key=lambda row: (getattr(row, sort) is not None, getattr(row, sort)))
    shown = RunList(listed.folder, chosen)
    print_json(shown) if as_json else print_runs(shown)


@runs_app.command("rm")
def remove(context: typer.Context, names: Names) -> None:
    """Remove runs with their directories. Example: csd-emu runs rm wide."""
    with INTERRUPTS.deferred():
        from host.monitoring.runs.run_listing import find_runs, remove_runs

    paths = list(dict.fromkeys(path for name in names for path in find_runs(name, context.obj)))
    remove_runs(paths)
    console.print(f"removed: {', '.join(map(str, paths))}", markup=False)


@runs_app.command("export")
def export(
    context: typer.Context,
    names: Names,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="for rounds.csv, devices.csv and steps.csv")],
    kind: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="of the files")] = "csv",
) -> None:
    """Write the rounds, devices and steps of runs as tables. Example: csd-emu runs export wide --output tables."""
    with INTERRUPTS.deferred():
        from host.monitoring.report.load_run import load_run
        from host.monitoring.runs.run_listing import find_runs
        from host.monitoring.runs.run_tables import write_tables

    loaded = [load_run(path) for name in names for path in find_runs(name, context.obj)]
    for path in write_tables(loaded, output, kind):
        console.print(str(path), markup=False)


def compare(
    names: Names,
    folder: Runs = Path("runs"),
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.HTML", help="write figures and curves into this page, too")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Put runs beside each other: figures, what differs in configuration, and whether that is more than noise.

    A name stands for all runs called so: with different seeds they say how much a figure varies.
    """
    with INTERRUPTS.deferred():
        from host.monitoring.report.load_run import load_run
        from host.monitoring.runs.comparison_page import write_comparison
        from host.monitoring.runs.run_comparison import compare_runs
        from host.monitoring.runs.run_listing import find_runs

    if len(set(names)) != len(names):
        raise ConfigurationError("a run is named twice; name different ones")
    groups = {name: [load_run(path, trust) for path in find_runs(name, folder)] for name in names}
    comparison = compare_runs(groups)
    if output is not None:
        write_comparison(comparison, groups, output)
    print_json(comparison) if as_json else print_comparison(comparison)


def print_runs(listed: RunList) -> None:
    """Print a row a run."""
    columns = ("name", "began", "state", "model", "data", "mode", "drives", "rounds", "accuracy", "records/s")
    table = figures_table(
        f"Runs in {escape(listed.folder)}",
        (*columns, "J/record", "clock"),
        left=("name", "began", "state", "model", "data"),
    )
    for row in listed.runs:
        table.add_row(*map(escape, _cells(row)))
    console.print(table)
    if not listed.runs:
        console.print("none; csd-emu run makes one")


def _cells(row: RunRow) -> list[str]:
    counts = ["" if each is None else str(each) for each in (row.drives, row.rounds)]
    rates = ["" if each is None else f"{each:.4g}" for each in (row.records_per_device_second, row.joules_per_record)]
    accuracy = "" if row.accuracy is None else f"{row.accuracy:.4f}"
    names = [row.name, row.began, row.state, row.model.rpartition("/")[2], row.data.rpartition("/")[2], row.mode]
    return [*names, *counts, accuracy, *rates, row.clock]


def print_comparison(comparison: RunComparison) -> None:
    """Print figures side by side, and what differs in configuration."""
    first, *others = map(escape, comparison.names)
    table = figures_table(
        f"Runs compared with {first}",
        ("figure", "clock", first, *(each for name in others for each in (name, "difference", "verdict"))),
        left=("figure", "clock", "verdict"),
    )
    for row in comparison.figures:
        cells = [_mean(row.columns[0])]
        for column in row.columns[1:]:
            cells += [_mean(column), "" if column.difference is None else f"{column.difference:+.4g}", column.verdict]
        table.add_row(*map(escape, (row.figure, row.clock, *cells)))
    console.print(table)
    for key, values in comparison.configuration.items():
        console.print(f"{key}: {' | '.join(map(str, values))}", markup=False)
    console.print(
        f"in brackets: runs, ± their standard deviation; verdicts at {comparison.confidence:.0%} confidence (Welch)",
    )


def _mean(column: FigureColumn) -> str:
    if column.mean is None:
        return "none"
    spread = "" if column.deviation is None else f" ±{column.deviation:.2g}"
    return f"{column.mean:.5g}{spread} ({column.runs})"

"""`csd-emu bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from csd_emu.util.paths import Paths
from host.cli.common_options import Json, list_beginning
from host.cli.shipped_examples import NamedText
from host.core.console import StageProgress, console, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from csd_lab.bench.bench_report import BenchReport


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(bench)


def complete_bench(incomplete: str) -> list[str]:
    """Return names of benches, for the shell's completion."""
    from csd_lab.bench import BENCHES

    return list_beginning(incomplete, BENCHES)


def bench(
    name: Annotated[
        str | None, typer.Argument(help="which one; without, they are listed", autocompletion=complete_bench)
    ] = None,
    seed: Annotated[int, typer.Option(help="of everything random", min=0)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="fewer cases, for a look; not every bench has it")] = False,
    cases: Annotated[int | None, typer.Option(help="how many cases (fuzz)", min=1)] = None,
    replay: Annotated[Path | None, typer.Option(help="a saved case, which alone is run again (fuzz)")] = None,
    minutes: Annotated[float | None, typer.Option(help="for how long (soak)", min=1.0, max=10_080.0)] = None,
    as_json: Json = False,
) -> None:
    """Measure one of the project's promises, or list them."""
    with INTERRUPTS.deferred():
        from csd_lab.bench import list_benches, run_bench
        from csd_lab.bench.bench_report import BenchList
        from host.cli.shipped_examples import print_names

    if name is None:
        benches = BenchList([NamedText(*each) for each in list_benches().items()])
        print_json(benches) if as_json else print_names(benches.benches)
        return
    with StageProgress(quiet=as_json) as progress:
        options = {"quick": quick, "cases": cases, "replay": replay, "minutes": minutes}
        report = run_bench(name, Paths.default(), progress, seed, **options)
    print_json(report) if as_json else print_bench(report)


def print_bench(report: BenchReport) -> None:
    """Print a bench's figures; the raw samples are in the JSON form."""
    table = Table("figure", "value", title=f"{report.bench} ({report.engine}, clock: {report.clock})")
    for name, value in report.figures.items():
        table.add_row(name, f"{value:.6g}")
    console.print(table)

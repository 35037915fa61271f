"""`csd-emu report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from host.cli.common_options import Json, Trust
from host.cli.json_output import print_json
from host.core.console import StageProgress, console
from host.core.interrupts import INTERRUPTS
from host.monitoring.report.formats import format_share

if TYPE_CHECKING:
    from host.monitoring.report.report_page import ReportOutput


def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="a run directory, finished or not")],
    output: Annotated[Path | None, typer.Option("--output", help="the file; by default report.html in DIR")] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run again: one HTML file that needs nothing else."""
    with INTERRUPTS.deferred():
        from host.monitoring.report.report_page import write_report
    with StageProgress(quiet=as_json) as progress:
        progress.stage("write the report")
        result = write_report(run, output, trust)
    print_json(result) if as_json else print_report(result)


def print_report(report: ReportOutput) -> None:
    """Print where the report is, and the comparison in short."""
    for note in report.notes:
        console.print(note, soft_wrap=True)
    comparison = report.comparison
    if comparison.band:
        slow, fast = comparison.band[-1], comparison.band[0]
        console.print(
            f"against a host that trains alone: {slow.speedup:.3g} to {fast.speedup:.3g} times its speed, "
            f"bytes over the link saved: {format_share(comparison.saved_share)}",
            soft_wrap=True,
        )
    elif comparison.reason:
        console.print(f"no comparison of time and energy: {comparison.reason}", soft_wrap=True)
    console.print(f"report: {report.report}", soft_wrap=True)

"""`csd-emu report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from host.cli.common_options import Json, Trust
from host.cli.json_output import print_json
from host.core.console import StageProgress
from host.core.interrupts import INTERRUPTS


def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="a run directory, finished or not")],
    output: Annotated[Path | None, typer.Option("--output", help="the file; by default report.html in DIR")] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run again: one HTML file that needs nothing else."""
    with INTERRUPTS.deferred():
        from host.cli.tables.report_table import print_report
        from host.monitoring.report.report_page import write_report
    with StageProgress(quiet=as_json) as progress:
        progress.stage("write the report")
        result = write_report(run, output, trust)
    print_json(result) if as_json else print_report(result)

"""`csd-emu report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from host import printing
from host.commands.options import Json, Trust
from host.console import StageProgress
from host.interrupts import INTERRUPTS
from host.outputs import print_json


def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="a run directory, finished or not")],
    output: Annotated[Path | None, typer.Option("--output", help="the file; by default report.html in DIR")] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run again: one HTML file that needs nothing else."""
    with INTERRUPTS.deferred():
        from host.report.page import write_report
    with StageProgress(quiet=as_json) as progress:
        progress.stage("write the report")
        result = write_report(run, output, trust)
    print_json(result) if as_json else printing.print_report(result)

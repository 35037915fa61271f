"""`csd-emu run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.paths import Paths
from host import printing
from host.commands.options import ArrayOption, EngineOption, JobFile, Json
from host.console import StageProgress
from host.interrupts import INTERRUPTS
from host.outputs import print_json


def run(
    job: JobFile,
    array: ArrayOption,
    engine: EngineOption = None,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train a job on an array; unless the array is up, start it first and end it afterwards."""
    with INTERRUPTS.deferred():
        from host.requests import read_run
        from host.run import run_job

        request = read_run(job, array, engine and engine.value)
    with StageProgress(quiet=as_json) as progress:
        summary = run_job(request, Paths.default(), runs, progress, quiet=as_json)
    print_json(summary) if as_json else printing.print_summary(summary)
    raise typer.Exit(0 if summary.reached else 1)

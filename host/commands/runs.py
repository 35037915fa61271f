"""`csd-emu run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.paths import Paths
from firmware_agent.errors import ConfigurationError
from host import printing
from host.commands.options import (
    CommunicationOption,
    EngineOption,
    Json,
    PlacementOption,
    PreferOption,
    Stay,
    Trust,
    TunerOption,
)
from host.console import StageProgress, console
from host.interrupts import INTERRUPTS
from host.outputs import print_json
from host.printing_failures import print_failures
from host.summary import Summary


def run(
    job: Annotated[Path | None, typer.Argument(metavar="JOB.YAML", help="what to train")] = None,
    array: Annotated[Path | None, typer.Option("--array", metavar="ARRAY.YAML", help="which drives")] = None,
    engine: EngineOption = None,
    tuner: TunerOption = None,
    comm: CommunicationOption = None,
    placement: PlacementOption = None,
    prefer: PreferOption = None,
    servers: Annotated[
        Path | None,
        typer.Option("--servers", metavar="SERVERS.YAML", help="servers that train together, in place of --array"),
    ] = None,
    server: Annotated[str | None, typer.Option("--server", metavar="NAME", help="which of them this is")] = None,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="go on with the run in this directory instead")
    ] = None,
    trust: Trust = False,
    stay: Stay = False,
    as_json: Json = False,
) -> None:
    """Train a job on an array; unless the array is up, start it first and end it afterwards."""
    with INTERRUPTS.deferred():
        from host.requests import read_run
        from host.resume import resume_run
        from host.run import Stay as Staying
        from host.run import run_job

    shown: list[Summary] = []

    def show(summary: Summary) -> None:
        shown.append(summary)
        print_json(summary) if as_json else printing.print_summary(summary)
        if not as_json:
            print_failures(summary.failures)

    def show_and_stay(summary: Summary) -> None:
        show(summary)
        if not as_json:
            console.print("drives, metrics and live page stay until Ctrl-C")

    staying = Staying(show_and_stay) if stay else None
    chosen = engine and engine.value
    if resume is not None:
        if any(each is not None for each in (job, array, tuner, comm, placement, prefer, servers, server)):
            raise ConfigurationError(
                "--resume takes job and array from DIR; leave JOB.YAML, --array, --servers, --server, --tuner, --comm, "
                "--placement and --prefer out"
            )
        with StageProgress(quiet=as_json) as progress:
            summary = resume_run(resume, chosen, Paths.default(), progress, as_json, staying, trust)
    elif (servers is None) != (server is None):
        raise ConfigurationError("--servers SERVERS.YAML and --server NAME are given together: which of them is this?")
    elif job is None or (array is None) == (servers is None):
        raise ConfigurationError(
            "give JOB.YAML and --array ARRAY.YAML (or --servers SERVERS.YAML and --server NAME), or --resume DIR"
        )
    else:
        with INTERRUPTS.deferred():
            request = read_run(
                *(job, array, chosen),
                None if tuner is None else tuner.value,
                None if comm is None else comm.value,
                placement,
                None if prefer is None else {"prefer": prefer},
                None if servers is None or server is None else (servers, server),
            )
        with StageProgress(quiet=as_json) as progress:
            summary = run_job(request, Paths.default(), runs, progress, quiet=as_json, stay=staying)
    if not shown:  # a run that had finished before does not stay
        show(summary)
    raise typer.Exit(0 if summary.reached else 1)

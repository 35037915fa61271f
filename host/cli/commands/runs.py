"""`csd-emu run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.cli.common_options import (
    CommunicationOption,
    EngineOption,
    Json,
    PlacementOption,
    PreferOption,
    Stay,
    Trust,
    TunerOption,
)
from host.cli.json_output import print_json
from host.core.console import StageProgress, console, print_failures, print_summary
from host.core.interrupts import INTERRUPTS
from host.core.summary import Summary

if TYPE_CHECKING:
    from host.app.run_request import RunRequest
    from host.config.resolve import JobChanges


JobArgument = Annotated[Path | None, typer.Argument(metavar="JOB.YAML", help="what to train")]
ServersOption = Annotated[
    Path | None,
    typer.Option("--servers", metavar="SERVERS.YAML", help="servers that train together, in place of --array"),
]
ResumeOption = Annotated[
    Path | None, typer.Option("--resume", metavar="DIR", help="go on with the run in this directory instead")
]


def run(
    job: JobArgument = None,
    array: Annotated[Path | None, typer.Option("--array", metavar="ARRAY.YAML", help="which drives")] = None,
    engine: EngineOption = None,
    tuner: TunerOption = None,
    comm: CommunicationOption = None,
    placement: PlacementOption = None,
    prefer: PreferOption = None,
    servers: ServersOption = None,
    server: Annotated[str | None, typer.Option("--server", metavar="NAME", help="which of them this is")] = None,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    resume: ResumeOption = None,
    trust: Trust = False,
    stay: Stay = False,
    as_json: Json = False,
) -> None:
    """Train a job on an array; unless the array is up, start it first and end it afterwards."""
    with INTERRUPTS.deferred():
        from host.app.resume import resume_run
        from host.app.run_job import Stay as Staying
        from host.app.run_job import run_job
        from host.config.resolve import JobChanges

    shown: list[Summary] = []

    def show_and_stay(summary: Summary) -> None:
        shown.append(summary)
        _show(summary, as_json)
        if not as_json:
            console.print("drives, metrics and live page stay until Ctrl-C")

    staying = Staying(show_and_stay) if stay else None
    chosen = engine and engine.value
    if resume is not None:
        _check_resumed(job, array, tuner, comm, placement, prefer, servers, server)
        with StageProgress(quiet=as_json) as progress:
            summary = resume_run(resume, chosen, Paths.default(), progress, as_json, staying, trust)
    else:
        keys = None if prefer is None else {"prefer": prefer}
        changes = JobChanges(tuner and tuner.value, comm and comm.value, placement, keys)
        request = _read_files(job, array, servers, server, chosen, changes)
        with StageProgress(quiet=as_json) as progress:
            summary = run_job(request, Paths.default(), runs, progress, quiet=as_json, stay=staying)
    if not shown:  # a run that had finished before does not stay
        _show(summary, as_json)
    raise typer.Exit(0 if summary.reached else 1)


def _show(summary: Summary, as_json: bool) -> None:
    print_json(summary) if as_json else print_summary(summary)
    if not as_json:
        print_failures(summary.failures)


def _check_resumed(*given: object) -> None:
    """Refuse what a run that is resumed takes from its directory."""
    if any(each is not None for each in given):
        raise ConfigurationError(
            "--resume takes job and array from DIR; leave JOB.YAML, --array, --servers, --server, --tuner, --comm, "
            "--placement and --prefer out"
        )


def _read_files(
    job: Path | None,
    array: Path | None,
    servers: Path | None,
    server: str | None,
    engine: str | None,
    changes: JobChanges,
) -> RunRequest:
    """Return what the files of a new run ask for.

    Raises:
        ConfigurationError: one is missing, too many are named, or one breaks a rule.
    """
    if (servers is None) != (server is None):
        raise ConfigurationError("--servers SERVERS.YAML and --server NAME are given together: which of them is this?")
    if job is None or (array is None) == (servers is None):
        raise ConfigurationError(
            "give JOB.YAML and --array ARRAY.YAML (or --servers SERVERS.YAML and --server NAME), or --resume DIR"
        )
    with INTERRUPTS.deferred():
        from host.app.prepare import prepare_run
        from host.config.resolve import resolve_run

        group = None if servers is None or server is None else (servers, server)
        return prepare_run(resolve_run(job, array, engine, changes, group))

"""`csd-emu up`, `down`, `status`, `sweep` and `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.paths import Paths
from firmware_agent.errors import ConfigurationError
from host import printing
from host.commands.completion import complete_array
from host.commands.options import ArrayFile, EngineOption, JobOption, Json, Stay
from host.console import StageProgress
from host.interrupts import INTERRUPTS
from host.outputs import print_json


def up(
    array: ArrayFile,
    job: JobOption = None,
    engine: EngineOption = None,
    stay: Stay = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="only show which drive would go on which hypervisor; start nothing")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start an array that stays up, with the data of a job (the quickstart's, if none is given)."""
    if plan:
        _show_plan(array, engine and engine.value, as_json)
        return
    with INTERRUPTS.deferred():
        from host.arrays import bring_up
        from host.outputs import ArrayStatus, StatusReport
        from host.requests import read_up
        from host.staying import keep_up

        request = read_up(array, job, engine and engine.value)

    def show(status: ArrayStatus) -> None:
        print_json(status) if as_json else printing.print_status(StatusReport([status]))

    with StageProgress(quiet=as_json) as progress:
        if stay:
            keep_up(request, Paths.default(), progress, show, printing.print_change)
        else:
            show(bring_up(request, Paths.default(), progress))


def _show_plan(array: Path, engine: str | None, as_json: bool) -> None:
    with INTERRUPTS.deferred():
        from host.placing import plan_placement
        from host.printing_hypervisors import print_placement
        from host.requests import read_array

    report = plan_placement(read_array(array, engine), Paths.default())
    print_json(report) if as_json else print_placement(report)


def down(
    name: Annotated[str, typer.Argument(help="name of the array", autocompletion=complete_array)], as_json: Json = False
) -> None:
    """End an array that is up."""
    with INTERRUPTS.deferred():
        from host.arrays import take_down

    report = take_down(name, Paths.default())
    print_json(report) if as_json else printing.print_sweep(report)


def status(as_json: Json = False) -> None:
    """Show the arrays that are up."""
    with INTERRUPTS.deferred():
        from host.arrays import report_status

    report = report_status(Paths.default())
    print_json(report) if as_json else printing.print_status(report)


def sweep(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="arrays; all of this user if none is given", autocompletion=complete_array),
    ] = None,
    array: Annotated[
        Path | None,
        typer.Option("--array", metavar="ARRAY.YAML", help="an array by its file, on the hypervisors that it names"),
    ] = None,
    as_json: Json = False,
) -> None:
    """End all that is left of arrays, with or without a state file."""
    with INTERRUPTS.deferred():
        from host.arrays import sweep as sweep_arrays
        from host.arrays import sweep_file
        from host.requests import read_array

    if array is not None and names:
        raise ConfigurationError(f"sweep: names and --array {array} do not go together; leave one of them out")
    paths = Paths.default()
    report = sweep_arrays(names or [], paths) if array is None else sweep_file(read_array(array), paths)
    print_json(report) if as_json else printing.print_sweep(report)


def validate(
    array: ArrayFile,
    job: JobOption = None,
    engine: EngineOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="also print the domain XML of each drive")] = False,
    build: Annotated[
        bool,
        typer.Option("--build", help="also import and try the job's own model, strategy or tuner: runs their code"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check an array file, and a job if given, without starting anything or running what they name."""
    with INTERRUPTS.deferred():
        from host.validation import validate_files

    report = validate_files(array, job, engine and engine.value, dry_run, Paths.default(), build)
    print_json(report) if as_json else printing.print_validation(report)

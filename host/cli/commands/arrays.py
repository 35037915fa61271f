"""`csd-emu up`, `down`, `status`, `sweep` and `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.cli.common_options import ArrayFile, EngineOption, JobOption, Json, Stay
from host.cli.completion import complete_array
from host.cli.json_output import print_json
from host.core.console import StageProgress
from host.core.interrupts import INTERRUPTS


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
        from host.app.array_actions import ArrayStatus, StatusReport, bring_up, read_up
        from host.app.foreground import keep_up, print_change
        from host.cli.tables.arrays_table import print_status

        request = read_up(array, job, engine and engine.value)

    def show(status: ArrayStatus) -> None:
        print_json(status) if as_json else print_status(StatusReport([status]))

    with StageProgress(quiet=as_json) as progress:
        if stay:
            keep_up(request, Paths.default(), progress, show, print_change)
        else:
            show(bring_up(request, Paths.default(), progress))


def _show_plan(array: Path, engine: str | None, as_json: bool) -> None:
    with INTERRUPTS.deferred():
        from host.cli.tables.vm_schedule_table import print_vm_schedule
        from host.cli.vm_schedule import schedule_drives
        from host.config.array_files import read_array

    report = schedule_drives(read_array(array, engine), Paths.default())
    print_json(report) if as_json else print_vm_schedule(report)


def down(
    name: Annotated[str, typer.Argument(help="name of the array", autocompletion=complete_array)], as_json: Json = False
) -> None:
    """End an array that is up."""
    with INTERRUPTS.deferred():
        from host.app.array_actions import take_down
        from host.cli.tables.arrays_table import print_sweep

    report = take_down(name, Paths.default())
    print_json(report) if as_json else print_sweep(report)


def status(as_json: Json = False) -> None:
    """Show the arrays that are up."""
    with INTERRUPTS.deferred():
        from host.app.array_actions import report_status
        from host.cli.tables.arrays_table import print_status

    report = report_status(Paths.default())
    print_json(report) if as_json else print_status(report)


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
        from host.app.array_actions import sweep as sweep_arrays
        from host.app.array_actions import sweep_file
        from host.cli.tables.arrays_table import print_sweep
        from host.config.array_files import read_array

    if array is not None and names:
        raise ConfigurationError(f"sweep: names and --array {array} do not go together; leave one of them out")
    paths = Paths.default()
    report = sweep_arrays(names or [], paths) if array is None else sweep_file(read_array(array), paths)
    print_json(report) if as_json else print_sweep(report)


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
        from host.app.validation import validate_files
        from host.cli.tables.arrays_table import print_validation

    report = validate_files(array, job, engine and engine.value, dry_run, Paths.default(), build)
    print_json(report) if as_json else print_validation(report)

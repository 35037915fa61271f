"""`csd-emu up`, `down`, `status`, `sweep`, `inject` and `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.engine_names import AS_IN_FILE, ArrayChanges
from csd_emu.util.config_files import FILE_KINDS, load_mapping
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.units import format_bytes
from host.cli.common_options import (
    ArrayFile,
    ArrayOrDefault,
    ClockOption,
    EngineOption,
    JobOption,
    Json,
    Stay,
    complete_array,
    complete_fault,
)
from host.config.array_files import find_array, read_array
from host.core.console import StageProgress, console, errors, print_json, print_line
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from csd_emu.engines.qemu.vm_scheduling import VmScheduleReport
    from host.app.array_actions import StatusReport, SweepReport
    from host.app.inject_fault import InjectReport
    from host.app.validation import ValidationReport
    from host.core.partition import HeldRecords


def up(
    array: ArrayFile,
    job: JobOption = None,
    engine: EngineOption = None,
    clock: ClockOption = None,
    stay: Stay = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="only show which drive would go on which hypervisor; start nothing")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start an array that stays up, with the data of a job (the quickstart's, if none is given)."""
    if plan:
        _show_plan(array, ArrayChanges(engine, clock), as_json)
        return
    with INTERRUPTS.deferred():
        from host.app.array_actions import ArrayStatus, StatusReport, bring_up, keep_up, read_up

        request = read_up(array, job, ArrayChanges(engine, clock))

    def show(status: ArrayStatus) -> None:
        print_json(status) if as_json else print_status(StatusReport([status]))

    with StageProgress(quiet=as_json) as progress:
        paths = Paths.default()
        keep_up(request, paths, progress, show) if stay else show(bring_up(request, paths, progress))


def _show_plan(array: Path, changes: ArrayChanges, as_json: bool) -> None:
    with INTERRUPTS.deferred():
        from host.app.array_actions import schedule_drives

    report = schedule_drives(read_array(array, changes), Paths.default())
    print_json(report) if as_json else print_vm_schedule(report)


def down(
    name: Annotated[str, typer.Argument(help="name of the array", autocompletion=complete_array)], as_json: Json = False
) -> None:
    """End an array that is up."""
    with INTERRUPTS.deferred():
        from host.app.array_actions import take_down

    report = take_down(name, Paths.default())
    print_json(report) if as_json else print_sweep(report)


def status(as_json: Json = False) -> None:
    """Show the arrays that are up."""
    with INTERRUPTS.deferred():
        from host.app.array_actions import report_status

    report = report_status(Paths.default())
    print_json(report) if as_json else print_status(report)


def clean(
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

    if array is not None and names:
        raise ConfigurationError(f"sweep: names and --array {array} do not go together; leave one of them out")
    paths = Paths.default()
    report = sweep_arrays(names or [], paths) if array is None else sweep_file(read_array(array), paths)
    print_json(report) if as_json else print_sweep(report)


def validate(
    file: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="a job; or an array alone")],
    array: ArrayOrDefault = None,
    job: JobOption = None,
    engine: EngineOption = None,
    clock: ClockOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="also print the domain XML of each drive")] = False,
    build: Annotated[
        bool,
        typer.Option("--build", help="also import and try the job's own model, strategy or tuner: runs their code"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a job with its array, or an array alone, without starting anything or running what they name."""
    with INTERRUPTS.deferred():
        from host.app.validation import validate_files

    if job is not None:
        errors.print("csd-emu validate ARRAY --job JOB is written csd-emu validate JOB --array ARRAY now")
    elif array is not None or (file.is_file() and FILE_KINDS[ArrayConfig.__name__][1] not in load_mapping(file)):
        job, array = file, find_array(file, array, AS_IN_FILE)
    array = array or file
    report = validate_files(array, job, ArrayChanges(engine, clock), dry_run, Paths.default(), build)
    print_json(report) if as_json else print_validation(report)


def print_vm_schedule(report: VmScheduleReport) -> None:
    """Print a table of the hypervisors and of the drives that would go on each."""
    table = Table(
        *("hypervisor", "URI", "cores", "memory", "disk", "room for", "drives"),
        title=f"{report.array}: drives on hypervisors (spread: {report.spread}); nothing was started",
    )
    for each in report.hypervisors:
        drives = f"{len(each.devices)}: {', '.join(each.devices)}" if each.devices else "none"
        amounts = ["unknown" if size is None else format_bytes(size) for size in (each.memory_bytes, each.disk_bytes)]
        usable = [str(each.cores), *amounts, "any number" if each.room is None else f"{each.room} more", drives]
        table.add_row(each.name, each.uri, *([*"----", f"cannot be used: {each.problem}"] if each.problem else usable))
    console.print(table)
    for name, why in report.unplaced.items():
        console.print(f"{name} would not start: {why}", markup=False)


def print_status(report: StatusReport) -> None:
    """Print a table of arrays and their drives."""
    if not report.arrays:
        console.print("no array is up")
    for array in report.arrays:
        table = Table(
            *("drive", "profile", "state", "records", "incarnation"),
            title=f"{array.array} ({array.engine}): {array.state}"
            + (f", counts steps of {array.counts_for}" if array.counts_for else ""),
        )
        for device in array.devices:
            table.add_row(device.name, device.profile, device.state, str(device.samples), str(device.incarnation))
        console.print(table)


def print_sweep(report: SweepReport) -> None:
    """Print which drives were ended."""
    for array in report.busy:
        console.print(f"{array}: in use by another csd-emu process, left alone")
    if not any(report.ended.values()):
        console.print("nothing was left")
    for array, devices in report.ended.items():
        if devices:
            console.print(f"{array}: ended {', '.join(devices)}")


def print_injection(report: InjectReport) -> None:
    """Print what was done to a drive."""
    noted = "the run has recorded it" if report.recorded else "no run is going on that could record it"
    console.print(f"{report.array} {report.device}: {report.detail}; {noted}", markup=False)


def print_validation(report: ValidationReport) -> None:
    """Print what was checked, and the domain XML if it was asked for."""
    machines = f"; virtual machines that count steps: {report.array['samplers']}" * (report.array["clock"] == "sampled")
    console.print(f"{report.array['name']}: {len(report.devices)} drives ({report.engine}{machines}), valid")
    if report.job is not None:
        tried = "" if report.built else "; your own code was not run: --build imports and tries it"
        console.print(f"job: {report.job['model']} on {report.job['data']['source']}, valid{tried}")
    if report.records is not None and report.records.private:
        print_held(report.records)
    for xml in report.domains.values():
        print_line(xml)


def print_held(held: HeldRecords) -> None:
    """Print a table of the private records of each drive."""
    title = "private records" + (f"; {held.left_out} are on no drive" if held.left_out else "")
    table = Table("drive", "records", "of class: records", title=title)
    for name, row in zip(held.drives, held.counts, strict=True):
        parts = (f"{kind}: {count}" for kind, count in zip(held.classes, row, strict=False) if count)
        table.add_row(name, str(sum(row)), ", ".join(parts))
    console.print(table)


def inject(
    array: Annotated[
        str, typer.Argument(help="name of an array that is up, or of a run's", autocompletion=complete_array)
    ],
    device: Annotated[str, typer.Argument(help="name of the drive, such as csd-01")],
    fault: Annotated[
        str,
        typer.Argument(
            help="kill, revive, freeze, thaw, cut, heal, slow, corrupt, fill or clear",
            autocompletion=complete_fault,
        ),
    ],
    weight: Annotated[
        int | None, typer.Option(help="slow: of the competing task, against the trainer's 100; 0 ends it")
    ] = None,
    after: Annotated[float, typer.Option(min=0.0, help="wall seconds to wait before")] = 0.0,
    duration: Annotated[
        float | None, typer.Option("--for", min=0.0, help="wall seconds after which the fault is undone")
    ] = None,
    as_json: Json = False,
) -> None:
    """Do harm to one drive of an array that is up, while a run is going on or not."""
    with INTERRUPTS.deferred():
        from host.app.inject_fault import Injection, inject_fault

        request = Injection.read(array, device, fault, weight, after, duration)
    with StageProgress(quiet=as_json) as progress:
        report = inject_fault(request, Paths.default(), progress)
    print_json(report) if as_json else print_injection(report)

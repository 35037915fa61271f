"""`csd-emu calibrate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.units import format_bytes
from host.cli.common_options import complete_profile
from host.core.console import StageProgress, console, figures_table, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from host.app.calibration_report import CalibrationOutcome, CalibrationReport
    from host.app.real_machine import RealMachine


_Cycles = Annotated[
    bool, typer.Option("--cycles/--no-cycles", help="count the core's cycles too, for arrays of core_model: cycles")
]

_Host = Annotated[
    str | None,
    typer.Option(
        metavar="PROFILE", help="measure this machine, as hosts of this profile", autocompletion=complete_profile
    ),
]

_Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="a drive's profile, whose core's cycles are counted", autocompletion=complete_profile
    ),
]


def calibrate(
    model: Annotated[str, typer.Argument(help="a built-in name, my_net.py:build, package.module:function or JOB.YAML")],
    batches: Annotated[str | None, typer.Option(help="two sizes or more; else 1,2,4, of a host 1,4,16,64,256")] = None,
    shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="of an image; not of built-in models")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="the builder's num_classes", min=1)] = None,
    argument: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="of the builder; repeatable")] = None,
    steps: Annotated[
        int | None, typer.Option(help="per batch size; else a counted second of them", min=1, max=4096)
    ] = None,
    memory: Annotated[str | None, typer.Option(help="DRAM of the machine, such as '8 GiB'")] = None,
    output: Annotated[Path | None, typer.Option(help="write the table here, not among your own")] = None,
    verify: Annotated[int | None, typer.Option(metavar="N", help="measure N random stored rows again", min=1)] = None,
    layers: Annotated[bool, typer.Option("--layers/--no-layers", help="measure each layer, for placement")] = True,
    cycles: _Cycles = True,
    profile: _Profile = None,
    seed: Annotated[int, typer.Option(help="of weights, images and the rows to verify", min=0, max=2**31 - 1)] = 0,
    inventory: Annotated[Path | None, typer.Option(metavar="DRIVES.YAML", help="of real drives, for --drive")] = None,
    drive: Annotated[str | None, typer.Option(help="the real drive to measure on, by its own clock")] = None,
    host: _Host = None,
    threads: Annotated[int | None, typer.Option(help="of --host; else as many as processors", min=1, max=4096)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object, for scripts")] = False,
) -> None:
    """Measure what a training step of a model costs on a drive, virtual or real, or on the host; keep it as a table."""
    with INTERRUPTS.deferred():
        from host.app.calibration_measurement import calibrate as calibrate_machine
        from host.app.calibration_report import keep_table, verify_rows
        from host.app.missing_table import read_job_request
        from host.config.calibration_request import read_memory, read_request, read_spec

        # Of a host no machine is made, whose memory might not hold the batches.
        sizes, room = (batches or "1,2,4", memory) if host is None else (batches or "1,4,16,64,256", "16 GiB")
        if model.endswith((".yaml", ".yml")):
            read = read_job_request(Path(model), batches, (shape, classes, argument))
            request = replace(read, steps=steps, memory_bytes=read_memory(room), seed=seed or read.seed, layers=layers)
        else:
            request = read_request(read_spec(model, classes, argument or []), shape, sizes, steps, room, seed, layers)
        real = _real_machine(inventory, drive, host, threads, verify)
        request = replace(request, cycles=cycles and real is None and verify is None, profile=profile)
    with StageProgress(quiet=as_json) as progress:
        paths = Paths.default()
        if verify is not None:
            report = verify_rows(request, verify, paths, progress)
        else:
            measure, name = (calibrate_machine, "") if real is None else (real.measure, real.name)
            report = keep_table(measure, request, output, paths, progress, name)
    print_json(report) if as_json else print_calibration(report)
    raise typer.Exit(0 if report.confirmed else 1)


def _real_machine(
    inventory: Path | None, drive: str | None, host: str | None, threads: int | None, verify: int | None
) -> RealMachine | None:
    """Return the drive or the host that was asked for, if any.

    Raises:
        ConfigurationError: half of it is missing, both are asked for, or it cannot be had.
    """
    if inventory is None and drive is None and host is None and threads is None:
        return None
    if verify is not None:
        raise ConfigurationError("--verify: compares counted rows; for a real drive see csd-emu fidelity")
    from host.app.real_machine import RealMachine

    if host is not None and inventory is None and drive is None:
        return RealMachine.of_host(host, threads)
    if host is not None or threads is not None or inventory is None or drive is None:
        raise ConfigurationError("to measure on a real drive give both --inventory and --drive, on this machine --host")
    return RealMachine.find(inventory, drive)


def print_calibration(report: CalibrationReport) -> None:
    """Print a calibration table, and the rows that were measured again."""
    shape = "x".join(map(str, report.input_shape))
    title = f"{report.model} at {shape}, seconds per step (clock: {report.clock})"
    columns = ("batch", "forward", "backward", "update", "step", report.profile, "memory", "layers", "wall s")
    table = figures_table(title, columns, left=())
    for row in report.rows:
        phases = row.reference_seconds
        seconds = (phases.forward, phases.backward, phases.update, phases.total, row.profile_seconds.total)
        cells = [*(f"{value:.4g}" for value in seconds), format_bytes(row.peak_memory_bytes), _layers_cell(row)]
        table.add_row(str(row.batch_size), *cells, f"{row.wall_seconds:.0f}")
    console.print(table)
    console.print(
        (
            f"measured on {report.drive}, a {report.profile}, by its own clock; the steps of a batch scatter by "
            f"{max(row.spread for row in report.rows):.1%} at most; memory: the process's peak\n"
            if report.drive
            else f"forward to step: on the counted 1 GIPS core; {report.profile}: the step on that drive; memory: the "
            "agent's peak\n"
        )
        + f"copying the weights out: {report.encode_seconds:.4g} s; layers: how many were measured, and how much "
        "longer a pass took that was watched for it, which is taken off",
    )
    _print_cycles(report)
    for again in report.verified:
        console.print(
            f"batch {again.batch_size} again: {again.measured_seconds:.6g} s, the table says "
            f"{again.table_seconds:.6g} s ({again.relative_difference:+.2%}, {report.tolerance:.0%} allowed)"
        )
    console.print(f"{report.wall_seconds:.0f} s of wall time; table: {report.path}")


def _print_cycles(report: CalibrationReport) -> None:
    phases = ("forward", "backward", "update", "encode")
    table = figures_table("cycles per instruction, by the core model", ("batch", *phases, "spread"), left=())
    for row in report.rows:
        if row.cycles_per_instruction is not None:
            ratios = [f"{row.cycles_per_instruction[phase]:.3f}" for phase in phases]
            table.add_row(
                str(row.batch_size), *ratios, "one step" if row.cycles_spread is None else f"{row.cycles_spread:.2%}"
            )
    if table.rows:
        console.print(table)


def _layers_cell(row: CalibrationOutcome) -> str:
    """Return how many layers were measured, and how much longer the forward and backward pass took for that."""
    if row.layers is None:
        return "-"
    whole = row.reference_seconds.forward + row.reference_seconds.backward
    watched = row.layers.watched.forward + row.layers.watched.backward
    longer = f" ({watched / whole - 1:+.1%})" if whole else ""
    return f"{len(row.layers.layers)}{longer}"

"""`csd-emu calibrate` and `csd-emu fidelity`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.units import format_bytes
from host.core.console import StageProgress, console, figures_table, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from host.app.calibration_report import CalibrationOutcome, CalibrationReport
    from host.app.real_drive import FidelityReport, RealDrive


def calibrate(
    model: Annotated[str, typer.Argument(help="a built-in name, my_net.py:build or package.module:function")],
    batches: Annotated[str, typer.Option(help="batch sizes to measure, two or more")] = "1,2,4",
    shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="shape of an image; built-in models have their own")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="the builder's num_classes", min=1)] = None,
    argument: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="one more argument of the builder; can be repeated")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="steps per batch size; else a counted second's worth, 32 at most", min=1, max=4096),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="DRAM of the machine, such as '8 GiB'")] = None,
    output: Annotated[Path | None, typer.Option(help="write the table here, not among your own")] = None,
    verify: Annotated[
        int | None, typer.Option(metavar="N", help="measure N random rows of the stored table again", min=1)
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers/--no-layers", help="measure each layer too, for csd-emu plan --placement")
    ] = True,
    cycles: Annotated[
        bool,
        typer.Option("--cycles/--no-cycles", help="count cycles of whole steps too, for arrays of core_model: cycles"),
    ] = True,
    seed: Annotated[int, typer.Option(help="of weights, images and the rows to verify", min=0, max=2**31 - 1)] = 0,
    inventory: Annotated[
        Path | None, typer.Option(metavar="DRIVES.YAML", help="measure on a real drive: which there are")
    ] = None,
    drive: Annotated[str | None, typer.Option(help="the one to measure on, by its own clock")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object, for scripts")] = False,
) -> None:
    """Measure what a training step of a model costs on a virtual drive, or a real one, and keep it as a table."""
    with INTERRUPTS.deferred():
        from host.app.calibration_report import calibrate as calibrate_machine
        from host.app.calibration_report import keep_table, verify_rows
        from host.config.calibration_request import read_request, read_spec

        spec = read_spec(model, classes, argument or [])
        request = read_request(spec, shape, batches, steps, memory, seed, layers)
        real = _real_drive(inventory, drive, verify)
        request = replace(request, cycles=cycles and real is None and verify is None)
    with StageProgress(quiet=as_json) as progress:
        paths = Paths.default()
        if verify is not None:
            report = verify_rows(request, verify, paths, progress)
        else:
            measure, name = (calibrate_machine, "") if real is None else (real.measure, real.name)
            report = keep_table(measure, request, output, paths, progress, name)
    print_json(report) if as_json else print_calibration(report)
    raise typer.Exit(0 if report.confirmed else 1)


def _real_drive(inventory: Path | None, drive: str | None, verify: int | None) -> RealDrive | None:
    """Return the drive that was asked for, if any.

    Raises:
        ConfigurationError: half of it is missing, or it cannot be had.
    """
    if inventory is None and drive is None:
        return None
    if inventory is None or drive is None:
        raise ConfigurationError("to measure on a real drive give both --inventory and --drive")
    if verify is not None:
        raise ConfigurationError("--verify: compares counted rows; for a real drive see csd-emu fidelity")
    from host.app.real_drive import RealDrive

    return RealDrive.find(inventory, drive)


def print_calibration(report: CalibrationReport) -> None:
    """Print a calibration table, and the rows that were measured again."""
    shape = "x".join(map(str, report.input_shape))
    title = f"{report.model} at {shape}, seconds per step (clock: {report.clock})"
    columns = ("batch", "forward", "backward", "update", "step", report.profile, "memory", "layers", "wall s")
    table = figures_table(title, columns, left=())
    for row in report.rows:
        phases = row.reference_seconds
        seconds = (phases.forward, phases.backward, phases.update, phases.total, row.profile_seconds.total)
        cells = [f"{value:.4g}" for value in seconds]
        memory = format_bytes(row.peak_memory_bytes)
        table.add_row(str(row.batch_size), *cells, memory, _layers_cell(row), f"{row.wall_seconds:.0f}")
    console.print(table)
    console.print(
        (
            f"measured on drive {report.drive}, a {report.profile}, by its own clock; the steps of a batch scatter by "
            f"{max(row.spread for row in report.rows):.1%} at most; memory: the agent's peak\n"
            if report.drive
            else f"forward to step: on the counted 1 GIPS core; {report.profile}: the step on that drive; memory: the "
            "agent's peak\n"
        )
        + f"copying the weights out: {report.encode_seconds:.4g} s; layers: how many were measured, and how much "
        "longer a pass took that was watched for it, which is taken off",
        soft_wrap=True,
    )
    for again in report.verified:
        console.print(
            f"batch {again.batch_size} again: {again.measured_seconds:.6g} s, the table says "
            f"{again.table_seconds:.6g} s ({again.relative_difference:+.2%}, {report.tolerance:.0%} allowed)"
        )
    console.print(f"{report.wall_seconds:.0f} s of wall time; table: {report.path}", soft_wrap=True)


def _layers_cell(row: CalibrationOutcome) -> str:
    """Return how many layers were measured, and how much longer the forward and backward pass took for that."""
    if row.layers is None:
        return "-"
    whole = row.reference_seconds.forward + row.reference_seconds.backward
    watched = row.layers.watched.forward + row.layers.watched.backward
    longer = f" ({watched / whole - 1:+.1%})" if whole else ""
    return f"{len(row.layers.layers)}{longer}"


def fidelity(
    drive: Annotated[str, typer.Argument(help="a drive of the inventory; it must be installed and enrolled")],
    inventory: Annotated[Path, typer.Option(metavar="DRIVES.YAML", help="which drives, and how to reach them")],
    model: Annotated[
        list[str] | None, typer.Option(help="a built-in name or my_net.py:build; can be repeated; else digits_cnn")
    ] = None,
    batches: Annotated[str, typer.Option(help="batch sizes to measure, two or more")] = "1,8,32",
    shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="shape of an image; built-in models have their own")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps per batch size", min=1, max=4096)] = None,
    seed: Annotated[int, typer.Option(help="of weights and images", min=0, max=2**31 - 1)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object, for scripts")] = False,
) -> None:
    """Measure models on a real drive, and say how far the emulation of its profile differs from it."""
    with INTERRUPTS.deferred():
        from host.app.real_drive import RealDrive, measure_fidelity
        from host.config.calibration_request import read_request, read_spec

        specs = map(read_spec, model or ["digits_cnn"])
        requests = [read_request(spec, shape, batches, steps, None, seed) for spec in specs]
        found = RealDrive.find(inventory, drive)
    with StageProgress(quiet=as_json) as progress:
        report = measure_fidelity(requests, found, Paths.default(), progress)
    print_json(report) if as_json else print_fidelity(report)


def print_fidelity(report: FidelityReport) -> None:
    """Print how far drive and emulation differ, and what would make them agree."""
    title = f"{report.drive} against an emulated {report.profile}, seconds per step"
    clocks = f"emulated ({report.emulated_clock})", f"drive ({report.drive_clock})"
    columns = ("model", "batch", *clocks, "drive / emulated", "spread", "steps")
    table = figures_table(title, columns, left=("model",))
    for row in report.rows:
        mark = " *" if row.extrapolated else ""
        table.add_row(
            *(row.model, f"{row.batch_size}{mark}", f"{row.emulated_seconds:.4g}", f"{row.drive_seconds:.4g}"),
            *(f"{row.ratio:.3f}", f"{row.spread:.1%}", str(row.steps)),
        )
    console.print(table)
    if any(row.extrapolated for row in report.rows):
        console.print("* the counted table has no such row: what it says was interpolated", soft_wrap=True)
    for fit in report.fits:
        console.print(
            f"{fit.kind} phases: the profile's scale is {fit.profile_scale:.4g}, {fit.fitted_scale:.4g} would fit "
            f"(worst error left: {fit.worst_error:.1%})",
            soft_wrap=True,
        )
    for figure in report.suggested:
        console.print(f"profile {figure.name}: {figure.now:.4g} now, {figure.fitted:.4g} fitted", soft_wrap=True)
    console.print(f"{report.wall_seconds:.0f} s of wall time", soft_wrap=True)

"""`csd-emu fidelity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csd_emu.util.paths import Paths
from host.core.console import StageProgress, console, figures_table, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from csd_lab.fidelity.drive_fidelity import FidelityReport


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(fidelity)


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
        from csd_lab.fidelity.drive_fidelity import measure_fidelity
        from host.app.real_drive import RealDrive
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

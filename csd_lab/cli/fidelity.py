"""`csd-emu fidelity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.core.console import StageProgress, console, figures_table, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from csd_lab.fidelity.board_fidelity import BoardFidelity
    from csd_lab.fidelity.drive_fidelity import FidelityReport


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(fidelity)


def fidelity(
    drive: Annotated[
        str | None, typer.Argument(help="a drive of the inventory, installed and enrolled; else published boards")
    ] = None,
    inventory: Annotated[
        Path | None, typer.Option(metavar="DRIVES.YAML", help="which drives, and how to reach them")
    ] = None,
    ncnn: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", envvar="CSD_NCNN", help="ncnn's networks (NAME.param) and packages, to compare"),
    ] = None,
    coremark: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PROGRAM", envvar="CSD_COREMARK", help="CoreMark for 64-bit ARM Linux; twice: its loader, then it"
        ),
    ] = None,
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
    """Say how far emulation is from real drives: from one that is measured now, or from boards that others measured."""
    if drive is None:
        if inventory is not None or model or shape is not None or steps is not None:
            raise ConfigurationError("fidelity: --inventory, --model, --input and --steps are of a drive; name it")
        compare_published(ncnn, coremark or [], as_json)
        return
    if inventory is None:
        raise ConfigurationError(f"fidelity {drive}: an --inventory says how to reach the drive; name its file")
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


def compare_published(ncnn: Path | None, coremark: list[Path], as_json: bool) -> None:
    """Compare the core model with published boards, and print what came of it."""
    from csd_lab.fidelity.board_fidelity import compare_boards

    with StageProgress(quiet=as_json) as progress:
        report = compare_boards(ncnn, coremark, Paths.default(), progress)
    print_json(report) if as_json else print_boards(report)


def print_boards(report: BoardFidelity) -> None:
    """Print each figure beside its published one, and the errors of each kind."""
    from csd_lab.fidelity.board_fidelity import KIND_NAMES

    title = f"predicted ({report.predicted_clock}, {report.core_model}) and published ({report.published_clock})"
    table = figures_table(title, ("board", "figure", "predicted", "published", "error"), left=("board", "figure"))
    for figure in report.figures:
        mark = "" if figure.judged else " *"
        values = f"{figure.predicted:.4g}", f"{figure.published:.4g}", f"{figure.error:+.0%}{mark}"
        table.add_row(figure.board, f"{figure.name}, {figure.unit}", *values)
    console.print(table)
    console.print("* not judged: the board's parameters were set from it, or it follows from these", soft_wrap=True)
    for kind, median in report.median_errors.items():
        worst = report.worst_errors[kind]
        console.print(f"{KIND_NAMES[kind]}: median error {median:.1%}, worst {worst:.0%}", soft_wrap=True)


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

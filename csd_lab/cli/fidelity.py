"""`csd-emu fidelity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.units import format_bytes
from host.core.console import StageProgress, console, figures_table, print_json
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from csd_lab.fidelity.board_fidelity import BoardFidelity, ComparedFigure
    from csd_lab.fidelity.board_measurement import MeasuredBoard
    from csd_lab.fidelity.board_report import BoardRequest
    from csd_lab.fidelity.drive_fidelity import FidelityReport
    from host.app.real_machine import RealMachine
    from host.config.calibration_request import CalibrationRequest

# Runs of each program on a board.
REPETITIONS = 5
LEFT = ("board", "figure")

InventoryFile = Annotated[Path | None, typer.Option(metavar="DRIVES.YAML", help="which drives, and how to reach them")]
NcnnFolder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", envvar="CSD_NCNN", help="ncnn's networks (NAME.param) and packages, to compare"),
]
CoreMarkPrograms = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="PROGRAM", envvar="CSD_COREMARK", help="CoreMark for 64-bit ARM Linux; twice: its loader, then it"
    ),
]
OnBoard = Annotated[
    str | None,
    typer.Option("--on", metavar="USER@BOARD[:PORT]", help="measure this board over SSH, and add it to published ones"),
]
SshConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="of --on: OpenSSH's configuration, in place of the user's")
]
Repetitions = Annotated[
    int | None, typer.Option(help="of --on: runs of each program, the best counts; else 5", min=2, max=100)
]
SaveFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="of --on: write what was measured, as published boards have it")
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(fidelity)


def fidelity(
    drive: Annotated[
        str | None, typer.Argument(help="a drive of the inventory, installed and enrolled; else published boards")
    ] = None,
    inventory: InventoryFile = None,
    ncnn: NcnnFolder = None,
    coremark: CoreMarkPrograms = None,
    model: Annotated[
        list[str] | None, typer.Option(help="a built-in name or my_net.py:build; can be repeated; else digits_cnn")
    ] = None,
    batches: Annotated[str, typer.Option(help="batch sizes to measure, two or more")] = "1,8,32",
    shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="shape of an image; built-in models have their own")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps per batch size", min=1, max=4096)] = None,
    on: OnBoard = None,
    ssh_config: SshConfig = None,
    repetitions: Repetitions = None,
    save: SaveFile = None,
    seed: Annotated[int, typer.Option(help="of weights and images", min=0, max=2**31 - 1)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object, for scripts")] = False,
) -> None:
    """Say how far emulation is from real drives: from one that is measured now, or from boards that others measured."""
    of_board = {"--ssh-config": ssh_config, "--repetitions": repetitions, "--save": save}
    of_drive = {"--inventory": inventory, "--model": model, "--input": shape, "--steps": steps}
    check_options(drive, on, of_drive, of_board)
    if on is not None:
        with INTERRUPTS.deferred():
            from csd_lab.fidelity.board_report import BoardRequest
            from csd_lab.fidelity.board_session import find_board
            from host.config.calibration_request import read_request, read_spec

            training = read_request(read_spec("digits_cnn"), None, batches, None, None, seed)
            board = find_board(on, ssh_config)
            request = BoardRequest(board, repetitions or REPETITIONS, ncnn, coremark or [], training, save)
        measure_board(request, as_json)
    elif drive is None:
        compare_published(ncnn, coremark or [], as_json)
    else:
        assert inventory is not None
        with INTERRUPTS.deferred():
            from host.app.real_machine import RealMachine
            from host.config.calibration_request import read_request, read_spec

            specs = map(read_spec, model or ["digits_cnn"])
            requests = [read_request(spec, shape, batches, steps, None, seed) for spec in specs]
            found = RealMachine.find(inventory, drive)
        measure_drive(requests, found, as_json)


def check_options(
    drive: str | None, on: str | None, of_drive: Mapping[str, object], of_board: Mapping[str, object]
) -> None:
    """Return if the options fit together.

    Args:
        drive: of an inventory.
        on: a board.
        of_drive: name -> value of the options of a drive; None: not given.
        of_board: the same, of a board.

    Raises:
        ConfigurationError: they do not.
    """
    if drive is not None and on is not None:
        raise ConfigurationError(
            f"fidelity: {drive} is a drive with an agent, --on {on} a board without; measure one of them at a time"
        )
    drives, boards = ([name for name, value in given.items() if value is not None] for given in (of_drive, of_board))
    if drives and drive is None:
        raise ConfigurationError(
            f"fidelity: {' and '.join(drives)}: for a drive alone; name it, or leave out the option"
        )
    if boards and on is None:
        raise ConfigurationError(f"fidelity: {' and '.join(boards)}: for a board alone; name it with --on user@board")
    if drive is not None and "--inventory" not in drives:
        raise ConfigurationError(f"fidelity {drive}: an --inventory says how to reach the drive; name its file")


def measure_drive(requests: Sequence[CalibrationRequest], drive: RealMachine, as_json: bool) -> None:
    """Measure models on a drive of an inventory, and print how far emulation is from it."""
    from csd_lab.fidelity.drive_fidelity import measure_fidelity

    with StageProgress(quiet=as_json) as progress:
        report = measure_fidelity(requests, drive, Paths.default(), progress)
    print_json(report) if as_json else print_fidelity(report)


def measure_board(request: BoardRequest, as_json: bool) -> None:
    """Measure a board over SSH, and print it beside published ones."""
    from csd_lab.fidelity.board_report import compare_board

    with StageProgress(quiet=as_json) as progress:
        report = compare_board(request, Paths.default(), progress)
    print_json(report) if as_json else print_boards(report)


def compare_published(ncnn: Path | None, coremark: list[Path], as_json: bool) -> None:
    """Compare the core model with published boards, and print what came of it."""
    from csd_lab.fidelity.board_fidelity import compare_boards

    with StageProgress(quiet=as_json) as progress:
        report = compare_boards(ncnn, coremark, Paths.default(), progress)
    print_json(report) if as_json else print_boards(report)


def print_boards(report: BoardFidelity) -> None:
    """Print each figure beside its published one, and the errors of each kind."""
    from csd_lab.fidelity.board_fidelity import KIND_NAMES

    clocks = f"predicted ({report.predicted_clock}, {report.core_model}) and {{}} ({report.published_clock})"
    name = None if report.measured is None else report.measured.board
    rows = [each for each in report.figures if each.board != name]
    table = figures_table(clocks.format("published"), ("board", "figure", "predicted", "published", "error"), left=LEFT)
    for figure in rows:
        table.add_row(escape(figure.board), *_compared_cells(figure))
    console.print(table)
    if report.measured is not None:
        print_measured(report, report.measured, clocks.format("measured"))
    console.print("* not judged: the board's parameters were set from it, or it follows from these")
    for kind, median in report.median_errors.items():
        worst = report.worst_errors[kind]
        console.print(f"{KIND_NAMES[kind]}: median error {median:.1%}, worst {worst:.0%}")


def print_measured(report: BoardFidelity, measured: MeasuredBoard, title: str) -> None:
    """Print the board that was measured now: its figures, and what there is to know of them."""
    facts, found = measured.facts, measured.measurement
    columns = ("figure", "predicted", "measured", "error", "spread", "")
    table = figures_table(f"{escape(measured.board)}: {title}", columns, left=("figure", ""))
    for figure in report.figures:
        if figure.board == measured.board:
            spread = f"{figure.spread:.1%}" if figure.spread is not None else ""
            table.add_row(*_compared_cells(figure), spread, "throttled" if figure.throttled else "")
    console.print(table)
    memory = "" if facts.memory_bytes is None else f", {format_bytes(facts.memory_bytes)} of memory"
    hot = "" if found.most_celsius is None else f", at most {found.most_celsius:.0f} degrees Celsius"
    others = f" and {facts.other_cores} others" if facts.other_cores else ""
    lines = [
        f"{measured.board}: {len(facts.a53_cores)} Cortex-A53{others}{memory}, Linux {facts.kernel}; measured on core "
        f"{measured.core} at {found.megahertz:.0f} MHz{hot}",
        *found.notes,
    ]
    if any(figure.throttled for figure in report.figures):
        lines.append("what is marked as throttled is left out of the medians")
    for line in lines:
        console.print(escape(line))


def _compared_cells(figure: ComparedFigure) -> tuple[str, str, str, str]:
    mark = "" if figure.judged or figure.throttled else " *"
    return (
        f"{figure.name}, {figure.unit}",
        f"{figure.predicted:.4g}",
        f"{figure.published:.4g}",
        f"{figure.error:+.0%}{mark}",
    )


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
        console.print("* the counted table has no such row: what it says was interpolated")
    for fit in report.fits:
        console.print(
            f"{fit.kind} phases: the profile's scale is {fit.profile_scale:.4g}, {fit.fitted_scale:.4g} would fit "
            f"(worst error left: {fit.worst_error:.1%})",
        )
    for figure in report.suggested:
        console.print(f"profile {figure.name}: {figure.now:.4g} now, {figure.fitted:.4g} fitted")
    console.print(f"{report.wall_seconds:.0f} s of wall time")

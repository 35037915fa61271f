"""`csd-emu calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.cli.json_output import print_json
from host.core.console import StageProgress
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from host.app.real_drive import RealDrive


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
    seed: Annotated[int, typer.Option(help="of weights, images and the rows to verify", min=0, max=2**31 - 1)] = 0,
    inventory: Annotated[
        Path | None, typer.Option(metavar="DRIVES.YAML", help="measure on a real drive: which there are")
    ] = None,
    drive: Annotated[str | None, typer.Option(help="the one to measure on, by its own clock")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object, for scripts")] = False,
) -> None:
    """Measure what a training step of a model costs on a virtual drive, or a real one, and keep it as a table."""
    with INTERRUPTS.deferred():
        from host.app.calibration_report import measure, verify_rows
        from host.cli.tables.calibration_table_view import print_calibration
        from host.config.calibration_request import read_request, read_spec

        spec = read_spec(model, classes, argument or [])
        request = read_request(spec, shape, batches, steps, memory, seed, layers)
        real = _real_drive(inventory, drive, verify)
    paths = Paths.default()
    with StageProgress(quiet=as_json) as progress:
        if real is not None:
            from host.app.real_drive import calibrate_drive

            report = calibrate_drive(request, real, output, paths, progress)
        elif verify is None:
            report = measure(request, output, paths, progress)
        else:
            report = verify_rows(request, verify, paths, progress)
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

"""`csd-emu recalibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from host.cli.common_options import Json
from host.core.console import StageProgress, console, print_json
from host.core.interrupts import INTERRUPTS


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(recalibrate)


def recalibrate(
    output: Annotated[Path | None, typer.Option(metavar="FOLDER", help="of new tables; else your own")] = None,
    resume: Annotated[bool, typer.Option(help="keep what is there of the same image and core model")] = False,
    as_json: Json = False,
) -> None:
    """Measure all shipped calibration tables anew, with layers and cycles; it takes hours."""
    with INTERRUPTS.deferred():
        from csd_emu.cycles.parameters import CoreParameters
        from csd_emu.image import ImageStore
        from csd_lab.fidelity.recalibration import RecalibrationReport
        from csd_lab.fidelity.recalibration import recalibrate as measure_all
        from host.app.calibration_measurement import calibrate

    paths, done = Paths.default(), []
    with StageProgress(quiet=as_json) as progress:
        image = ImageStore(paths.images).ensure(progress)
        current = (image.hash, CoreParameters().digest) if resume else None
        for table in measure_all(output or paths.calibration, current, calibrate, paths, progress):
            done.append(table)
            if not as_json:
                told = "measured" if table.measured else "kept"
                cycles = "with cycles" if table.cycles else "without cycles"
                console.print(f"{table.table}: {told}, {cycles}, steps differ by {table.worst_difference:.2%} at most")
    if as_json:
        print_json(RecalibrationReport(done))

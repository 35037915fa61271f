"""`csd-emu simulate`."""

from __future__ import annotations

from typing import Annotated

import typer

from csd_emu.paths import Paths
from host.commands.options import ArrayOption, JobFile, Json, TunerOption
from host.console import StageProgress
from host.interrupts import INTERRUPTS
from host.outputs import print_json


def simulate(
    job: JobFile,
    array: ArrayOption,
    drives: Annotated[int | None, typer.Option(help="so many; the array's own are repeated in turn", min=1)] = None,
    steps: Annotated[int, typer.Option(help="how many to simulate", min=1)] = 100,
    tuner: TunerOption = None,
    as_json: Json = False,
) -> None:
    """Work out how fast an array would train a job in step, and with what energy: no drive is started."""
    with INTERRUPTS.deferred():
        from csd_emu.calibration import CalibrationStore
        from host.printing_simulation import print_simulation
        from host.simulation.report import report_simulation
        from host.simulation.request import read_simulation

        request = read_simulation(job, array, tuner.value if tuner is not None else None, drives, steps)
    with StageProgress(quiet=as_json) as progress:
        report = report_simulation(request, CalibrationStore(Paths.default().calibration), progress)
    print_json(report) if as_json else print_simulation(report)

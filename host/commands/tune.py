"""`csd-emu tune`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from csd_emu.paths import Paths
from host.commands.options import ArrayOption, JobFile, Json
from host.console import StageProgress
from host.interrupts import INTERRUPTS
from host.outputs import print_json


class HostRatioChoice(StrEnum):
    """Which end of the host profile's band is taken for its speed."""

    low = "low"
    middle = "middle"
    high = "high"


def tune(
    job: JobFile,
    array: ArrayOption,
    host: Annotated[
        HostRatioChoice, typer.Option(help="how many drives the host is worth, of its profile's band")
    ] = HostRatioChoice.middle,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="measure a missing calibration table first, on a virtual drive")
    ] = False,
    as_json: Json = False,
) -> None:
    """Choose batch sizes with which all devices finish a step together, and shards for equal steps per epoch."""
    with INTERRUPTS.deferred():
        from csd_emu.calibration import CalibrationStore
        from host.printing_tune import print_tune
        from host.tune import calibrate_missing, read_tune
        from host.tune import tune as make_report

        request = read_tune(job, array)
    paths = Paths.default()
    if calibrate:
        with StageProgress(quiet=as_json) as progress:
            calibrate_missing(request, paths, progress)
    report = make_report(request, CalibrationStore(paths.calibration), host.value)
    print_json(report) if as_json else print_tune(report)

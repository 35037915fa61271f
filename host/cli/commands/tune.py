"""`csd-emu tune`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from host.cli.common_options import ArrayOption, JobFile, Json
from host.cli.json_output import print_json
from host.core.console import StageProgress
from host.core.interrupts import INTERRUPTS


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
        from csd_emu.profiles.calibration import CalibrationStore
        from host.app.tune_batches import calibrate_missing, read_tune
        from host.app.tune_batches import tune as make_report
        from host.cli.tables.tune_table import print_tune

        request = read_tune(job, array)
    paths = Paths.default()
    if calibrate:
        with StageProgress(quiet=as_json) as progress:
            calibrate_missing(request, paths, progress)
    report = make_report(request, CalibrationStore(paths.calibration), host.value)
    print_json(report) if as_json else print_tune(report)

"""`csd-emu plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from csd_emu.paths import Paths
from firmware_agent.errors import ConfigurationError
from host.commands.options import ArrayOption, JobFile, Json
from host.interrupts import INTERRUPTS
from host.outputs import print_json


def plan(
    job: JobFile,
    array: ArrayOption,
    placement: Annotated[
        bool, typer.Option("--placement", help="which layers the host takes over, and what every cut would cost")
    ] = False,
    as_json: Json = False,
) -> None:
    """Work out what a job would best be run with, before anything is started."""
    if not placement:
        raise ConfigurationError("say what to plan: --placement for the layers that the host takes over")
    with INTERRUPTS.deferred():
        from csd_emu.calibration import CalibrationStore
        from host.placement.plan import plan_placement
        from host.printing_placement import print_plan

    report = plan_placement(job, array, CalibrationStore(Paths.default().calibration))
    print_json(report) if as_json else print_plan(report)

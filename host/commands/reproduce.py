"""`csd-emu reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.paths import Paths
from host.commands.options import Json
from host.console import StageProgress
from host.interrupts import INTERRUPTS
from host.outputs import print_json

reproduce_app = typer.Typer(no_args_is_help=True, help="Published results beside ours.")


@reproduce_app.callback()
def reproduce() -> None:
    """Work out what was published, with every assumption listed."""


@reproduce_app.command()
def hypertune(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="write CSV, JSON and charts into this folder too")
    ] = None,
    as_json: Json = False,
) -> None:
    """STANNIS and HyperTune: speed, energy and traffic for 0 to 36 drives, and a node that is disturbed."""
    with INTERRUPTS.deferred():
        from csd_emu.calibration import CalibrationStore
        from host.printing_reproduction import print_hypertune
        from host.reproduce.hypertune import reproduce_hypertune
    with StageProgress(quiet=as_json) as progress:
        report = reproduce_hypertune(CalibrationStore(Paths.default().calibration), output, progress)
    print_json(report) if as_json else print_hypertune(report)


@reproduce_app.command()
def placement(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="write CSV and JSON into this folder too")
    ] = None,
    wall: Annotated[
        bool,
        typer.Option("--wall", help="run scaled models on native drives, too; a minute or two more"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Layers on the host: traffic and time for five models, 1 to 36 drives and four links."""
    with INTERRUPTS.deferred():
        from csd_emu.calibration import CalibrationStore
        from host.printing_placement_reproduction import print_placement_reproduction
        from host.reproduce.placement import reproduce_placement
    with StageProgress(quiet=as_json) as progress:
        paths = Paths.default()
        report = reproduce_placement(CalibrationStore(paths.calibration), output, progress, paths if wall else None)
    print_json(report) if as_json else print_placement_reproduction(report)


@reproduce_app.command()
def planner(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="write CSV, JSON and a chart into this folder too")
    ] = None,
    seed: Annotated[int, typer.Option(help="of the worlds", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Which devices train: hit rate, regret and overhead over 60 made-up worlds, ours and Gu et al.'s."""
    with INTERRUPTS.deferred():
        from host.printing_planner_reproduction import print_planner_reproduction
        from host.reproduce.planner import reproduce_planner
    with StageProgress(quiet=as_json) as progress:
        report = reproduce_planner(seed, output, progress)
    print_json(report) if as_json else print_planner_reproduction(report)

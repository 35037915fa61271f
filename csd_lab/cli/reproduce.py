"""`csd-emu reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from host.cli.common_options import Json
from host.cli.json_output import print_json
from host.core.console import StageProgress
from host.core.interrupts import INTERRUPTS

reproduce_app = typer.Typer(no_args_is_help=True, help="Published results beside ours.")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(reproduce_app, name="reproduce")


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
        from csd_emu.profiles.calibration import CalibrationStore
        from csd_lab.cli.tables.reproduction import print_hypertune
        from csd_lab.reproduce.reproduce_hypertune import reproduce_hypertune
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
        from csd_emu.profiles.calibration import CalibrationStore
        from csd_lab.cli.tables.placement_reproduction import print_placement_reproduction
        from csd_lab.reproduce.reproduce_placement import reproduce_placement
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
        from csd_lab.cli.tables.planner_reproduction import print_planner_reproduction
        from csd_lab.reproduce.reproduce_planner import reproduce_planner
    with StageProgress(quiet=as_json) as progress:
        report = reproduce_planner(seed, output, progress)
    print_json(report) if as_json else print_planner_reproduction(report)

"""`csd-emu simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.cli.common_options import JobFile, Json, TunerOption
from host.cli.json_output import print_json
from host.core.console import StageProgress
from host.core.interrupts import INTERRUPTS


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(simulate)


def simulate(
    job: JobFile,
    array: Annotated[Path | None, typer.Option("--array", metavar="ARRAY.YAML", help="which drives")] = None,
    servers: Annotated[
        Path | None, typer.Option("--servers", metavar="SERVERS.YAML", help="which servers, each with its array")
    ] = None,
    drives: Annotated[
        int | None, typer.Option(help="with --array: so many; the array's own are repeated in turn", min=1)
    ] = None,
    steps: Annotated[int, typer.Option(help="how many to simulate", min=1)] = 100,
    tuner: TunerOption = None,
    as_json: Json = False,
) -> None:
    """Work out how fast an array, or servers with one each, would train a job in step: no drive is started."""
    name: str | None = tuner.value if tuner is not None else None
    if (array is None) == (servers is None):
        raise ConfigurationError("give either --array ARRAY.YAML or --servers SERVERS.YAML")
    if servers is not None and drives is not None:
        raise ConfigurationError("--drives is for one array; in a servers file, say how many each array has")
    if array is not None:
        _simulate_array(job, array, name, drives, steps, as_json)
    elif servers is not None:
        _simulate_servers(job, servers, name, steps, as_json)


def _simulate_array(job: Path, array: Path, tuner: str | None, drives: int | None, steps: int, as_json: bool) -> None:
    with INTERRUPTS.deferred():
        from csd_emu.profiles.calibration import CalibrationStore
        from csd_lab.cli.tables.simulation import print_simulation
        from csd_lab.simulate.simulation_report import report_simulation
        from csd_lab.simulate.simulation_request import read_simulation

        request = read_simulation(job, array, tuner, drives, steps)
    with StageProgress(quiet=as_json) as progress:
        report = report_simulation(request, CalibrationStore(Paths.default().calibration), progress)
    print_json(report) if as_json else print_simulation(report)


def _simulate_servers(job: Path, servers: Path, tuner: str | None, steps: int, as_json: bool) -> None:
    with INTERRUPTS.deferred():
        from csd_emu.profiles.calibration import CalibrationStore
        from csd_lab.cli.tables.servers_simulation import print_servers_simulation
        from csd_lab.simulate.simulation_request import read_servers_simulation
        from csd_lab.simulate.tree_report import report_servers

        request = read_servers_simulation(job, servers, tuner, steps)
    with StageProgress(quiet=as_json) as progress:
        report = report_servers(request, CalibrationStore(Paths.default().calibration), progress)
    print_json(report) if as_json else print_servers_simulation(report)

"""`csd-emu plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from csd_emu.config.engine_names import ArrayChanges
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.cli.common_options import ClockOption, EngineOption, JobFile, Json, PreferOption, TunerOption
from host.config.overrides import given_keys
from host.core.console import StageProgress, print_json
from host.core.interrupts import INTERRUPTS

_WHAT = "--placement for the layers that the host takes over, or --prefer time|power|energy|edp for which devices train"


ServersOption = Annotated[
    Path | None,
    typer.Option("--servers", metavar="SERVERS.YAML", help="all servers' drives; with --from-tables alone"),
]
PlanPlacement = Annotated[
    bool, typer.Option("--placement", help="which layers the host takes over, and what every cut would cost")
]
StepsOption = Annotated[
    int | None, typer.Option(min=0, max=1000, help="of each configuration that is tried; 0: as --from-tables")
]
FromTables = Annotated[
    bool, typer.Option("--from-tables", help="start nothing: decide by the calibration tables (modelled)")
]


def plan(
    job: JobFile,
    array: Annotated[Path | None, typer.Option("--array", metavar="ARRAY.YAML", help="which drives")] = None,
    servers: ServersOption = None,
    placement: PlanPlacement = False,
    prefer: PreferOption = None,
    steps: StepsOption = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="the training takes no longer: 10 min")] = None,
    watts: Annotated[str | None, typer.Option(metavar="POWER", help="the array draws no more: 450 W")] = None,
    joules: Annotated[str | None, typer.Option(metavar="ENERGY", help="the training takes no more: 20 kJ")] = None,
    include: Annotated[list[str] | None, typer.Option(metavar="NODE", help="must train; may be given again")] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="NODE", help="must not; may be given again")] = None,
    critical_batch: Annotated[str | None, typer.Option(metavar="N", help="larger steps learn less; measured")] = None,
    unused_off: Annotated[bool, typer.Option("--unused-off", help="drives that do not train draw no power")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="go on with what was chosen, to the end")] = False,
    from_tables: FromTables = False,
    engine: EngineOption = None,
    clock: ClockOption = None,
    tuner: TunerOption = None,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    plot: Annotated[Path | None, typer.Option(metavar="FILE.SVG", help="draw the Pareto front into this file")] = None,
    as_json: Json = False,
) -> None:
    """Work out what a job would best be run with: which devices, or which layers on the host.

    Devices are tried in steps that count, on an array that is started as csd-emu run does; what was trained is kept.
    """
    given = {
        **{"prefer": prefer, "steps": 0 if from_tables else steps},
        **{"deadline": deadline, "watts": watts, "joules": joules, "include": include, "exclude": exclude},
        **{"critical_batch": critical_batch, "unused": "off" if unused_off else None},
    }
    keys = given_keys(given)
    if (array is None) == (servers is None):
        raise ConfigurationError("give either --array ARRAY.YAML or --servers SERVERS.YAML")
    if placement:
        return _plan_placement(job, array, bool(keys or apply or plot is not None), as_json)
    if from_tables and steps:
        raise ConfigurationError("--from-tables takes no steps; leave --steps or --from-tables out")
    with INTERRUPTS.deferred():
        from host.cli.planner_command import plan_devices, read_planned, show_devices
        from host.monitoring.report.charts.chart_figure import check_picture

    check_picture(plot)
    with INTERRUPTS.deferred():
        request = read_planned(job, array, servers, ArrayChanges(engine, clock), tuner, keys, _WHAT)
    with StageProgress(quiet=as_json) as progress:
        report = plan_devices(request, Paths.default(), runs, progress, quiet=as_json, apply=apply)
    show_devices(report, plot, as_json)
    raise typer.Exit(1 if apply and report.summary is not None and not report.summary.reached else 0)


def _plan_placement(job: Path, array: Path | None, more: bool, as_json: bool) -> None:
    if more:
        raise ConfigurationError("--placement is planned on its own, without options for devices; leave these out")
    if array is None:
        raise ConfigurationError("--placement: the host's part of a model is one server's; give its --array")
    with INTERRUPTS.deferred():
        from csd_emu.profiles.calibration import CalibrationStore
        from host.cli.placement_report import plan_placement, print_plan

    report = plan_placement(job, array, CalibrationStore(Paths.default().calibration))
    print_json(report) if as_json else print_plan(report)

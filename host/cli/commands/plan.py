"""`csd-emu plan`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from firmware_agent.common.units import format_bytes
from host.cli.common_options import EngineOption, JobFile, Json, PreferOption, TunerOption
from host.core.console import StageProgress, console, figures_table, print_json, print_summary, print_whole
from host.core.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from host.cli.placement_report import CutReport, LayerCosts, PlanReport
    from host.policies.split.cut_decision import CutRow

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
    unused_off: Annotated[bool, typer.Option("--unused-off", help="drives that do not train draw no power")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="go on with what was chosen, to the end")] = False,
    from_tables: FromTables = False,
    engine: EngineOption = None,
    tuner: TunerOption = None,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    plot: Annotated[Path | None, typer.Option(metavar="FILE.SVG", help="draw the Pareto front into this file")] = None,
    as_json: Json = False,
) -> None:
    """Work out what a job would best be run with: which devices, or which layers on the host.

    Devices are tried in steps that count, on an array that is started as csd-emu run does; what was trained is kept.
    """
    given: dict[str, Any] = {
        **{"prefer": prefer, "steps": 0 if from_tables else steps},
        **{"deadline": deadline, "watts": watts, "joules": joules, "include": include, "exclude": exclude},
        "unused": "off" if unused_off else None,
    }
    keys = {name: value for name, value in given.items() if value is not None and value != []}
    if (array is None) == (servers is None):
        raise ConfigurationError("give either --array ARRAY.YAML or --servers SERVERS.YAML")
    if placement:
        return _plan_placement(job, array, bool(keys or apply or plot is not None), as_json)
    if from_tables and steps:
        raise ConfigurationError("--from-tables takes no steps; leave --steps or --from-tables out")
    with INTERRUPTS.deferred():
        from host.cli.planner_command import check_plot, plan_devices, read_planned

    if plot is not None:
        check_plot(plot)
    with INTERRUPTS.deferred():
        request = read_planned(job, array, servers, engine, tuner, keys, _WHAT)
    with StageProgress(quiet=as_json) as progress:
        report = plan_devices(request, Paths.default(), runs, progress, quiet=as_json, apply=apply)
    _show(report, plot, apply, as_json)
    raise typer.Exit(1 if apply and report.summary is not None and not report.summary.reached else 0)


def _show(report: PlanReport, plot: Path | None, applied: bool, as_json: bool) -> None:
    """Draw and print what was decided, and what came of the training if it was gone on with."""
    with INTERRUPTS.deferred():
        from host.cli.planner_command import print_devices, write_plot

    if plot is not None and report.devices is not None:
        write_plot(report.devices, plot)
    if as_json:
        print_json(report)
        return
    print_devices(report)
    if applied and report.summary is not None:
        print_summary(report.summary)


def _plan_placement(job: Path, array: Path | None, more: bool, as_json: bool) -> None:
    if more:
        raise ConfigurationError("--placement is planned on its own, without options for devices; leave these out")
    if array is None:
        raise ConfigurationError("--placement: the host's part of a model is one server's; give its --array")
    with INTERRUPTS.deferred():
        from csd_emu.profiles.calibration import CalibrationStore
        from host.cli.placement_report import plan_placement

    report = plan_placement(job, array, CalibrationStore(Paths.default().calibration))
    print_json(report) if as_json else print_plan(report)


# Of many cuts the best are shown; all are in --json.
SHOWN = 16
_COLUMNS = (
    "host begins with",
    "step s",
    "drive s",
    "host s",
    "link/step",
    "bytes moved",
    "compute moved",
    "drive memory",
    "",
)


def print_plan(report: PlanReport) -> None:
    """Print everything that was planned."""
    shape = "x".join(map(str, report.input_shape))
    if report.placement is not None:
        print_placement(report.placement, f"{report.model} at {shape} on {report.array}")


def print_placement(plan: CutReport, title: str) -> None:
    """Print a row for each of the best cuts, which one is chosen and why, and why others cannot be."""
    table = figures_table(f"Placement: {title}", _COLUMNS, left=(_COLUMNS[0], ""))
    shown = _best(plan)
    for row in shown:
        chosen = row.drive_layers == plan.drive_layers
        table.add_row(*_cells(row), "<- chosen" if chosen else _why_not(row), style="bold" if chosen else None)
    print_whole(table)
    if left := sum(not row.refused for row in plan.cuts) - sum(not row.refused for row in shown):
        console.print(f"{left} more cuts are slower; --json has them all")
    for reason, names in _refused(plan.cuts):
        console.print(f"not before {names}: {reason}", markup=False, soft_wrap=True)
    overlap = "overlaps what drives compute" if plan.overlapped else "does not overlap what drives compute"
    console.print(
        f"clock of all seconds: {plan.clock}. {plan.drives} drives, {plan.records} records a step, a link of "
        f"{format_bytes(plan.link_bytes_per_second)}/s; the exchange {overlap}.",
        markup=False,
        soft_wrap=True,
    )
    for costs in plan.layer_costs:
        console.print(_layers_line(costs), markup=False, soft_wrap=True)
    console.print(_verdict(plan), markup=False, soft_wrap=True)
    for note in plan.notes:
        console.print(f"* {note}", markup=False, soft_wrap=True)


def _layers_line(costs: LayerCosts) -> str:
    """Return where the seconds of a device's layers come from."""
    alike = f" and {costs.alike - 1} alike" if costs.alike > 1 else ""
    if costs.measured_clock is None:
        how = f"shared out by arithmetic ({costs.reason})" if costs.reason else "shared out by arithmetic"
    elif costs.clock == costs.measured_clock:
        how = f"measured here ({costs.clock})"
    else:
        how = f"{costs.clock}, in proportion to what each was measured to take on a drive ({costs.measured_clock})"
    return f"seconds of layers on {costs.device}{alike}: {how}"


def _verdict(plan: CutReport) -> str:
    what = "every layer stays on the drives" if plan.layer is None else f"the host's part begins with {plan.layer}"
    times = ""
    if plan.layer is not None and plan.unmoved_seconds is not None:
        times = f" ({plan.unmoved_seconds / plan.step_seconds:.3g} times as fast as with nothing moved)"
    return f"{what}: a step takes {plan.step_seconds:.4g} s{times}; {plan.reason}"


def _why_not(row: CutRow) -> str:
    """Return why a cut is not made unasked; nothing if it might be."""
    if row.relieves or row.refused:
        return ""
    return "does not relieve the wire" if row.heavy else "much computing"


def _best(plan: CutReport) -> list[CutRow]:
    """Return the cuts to show, in the order of the model: nothing moved, the chosen one, and the best of the others."""

    def rank(row: CutRow) -> tuple[bool, float]:
        kept = row.layer is None or row.drive_layers == plan.drive_layers
        lowest = row.step_seconds if row.step_seconds is not None else row.at_least_seconds
        return not kept, lowest if lowest is not None else float("inf")

    possible = [row for row in plan.cuts if not row.refused or row.layer is None]
    return sorted(sorted(possible, key=rank)[:SHOWN], key=lambda row: -row.drive_layers)


def _refused(cuts: Sequence[CutRow]) -> list[tuple[str, str]]:
    """Return (reason, layers) of cuts that cannot be; many in a row with one reason are put together."""
    found = []
    for reason, group in groupby(cuts, key=lambda row: row.refused):
        names = [row.layer or "the end (nothing moved)" for row in group]
        if reason:
            found.append((reason, names[0] if len(names) == 1 else f"{names[-1]} to {names[0]} ({len(names)})"))
    return found


def _cells(row: CutRow) -> list[str]:
    least = "-" if row.at_least_seconds is None else f">= {row.at_least_seconds:.4g}"
    return [
        row.layer or "(nothing moved)",
        least if row.step_seconds is None else f"{row.step_seconds:.4g}",
        f"{row.drive_seconds:.4g}",
        f"{row.host_seconds:.4g}",
        format_bytes(row.traffic_bytes),
        f"{row.moved_parameters:.1%}",
        f"{row.moved_compute:.1%}",
        format_bytes(row.drive_memory_bytes) if row.drive_memory_bytes else "-",
    ]

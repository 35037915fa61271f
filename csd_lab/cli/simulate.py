"""`csd-emu simulate`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from csd_emu.util.paths import Paths
from firmware_agent.common.units import format_bytes
from host.cli.common_options import JobFile, Json, TunerOption
from host.core.console import StageProgress, console, print_json
from host.core.figure_bands import IN_BRACKETS, Band, format_band
from host.core.interrupts import INTERRUPTS
from host.core.summary import name_clock

if TYPE_CHECKING:
    from csd_lab.simulate.simulation_figures import (
        SimulatedClass,
        SimulatedRetune,
        SimulatedRun,
        SimulatedTree,
        SimulateReport,
        SimulateServersReport,
    )
    from host.monitoring.report.comparison import AssumedFigure


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
    with INTERRUPTS.deferred():
        from csd_emu.profiles.calibration import CalibrationStore
        from csd_lab.simulate.simulation_figures import SimulateReport
        from csd_lab.simulate.simulation_report import report_simulation
        from csd_lab.simulate.simulation_request import read_simulation

        request = read_simulation(job, array, servers, tuner, drives, steps)
    with StageProgress(quiet=as_json) as progress:
        report = report_simulation(request, CalibrationStore(Paths.default().calibration), progress)
    if as_json:
        print_json(report)
    elif isinstance(report, SimulateReport):
        print_simulation(report)
    else:
        print_servers_simulation(report)


# More retunes than this are counted only.
_SHOWN_RETUNES = 8


def print_simulation(report: SimulateReport) -> None:
    """Print the runs over the host's band, the classes of nodes and the retunes of the middle one."""
    table = Table(title=f"{report.model} on {report.array}: {report.drives} drives, tuner {report.tuner} (simulated)")
    for name in ("host is", "records/s", "J/record", "link/record", "step s", "speed-up", "energy"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in report.runs:
        table.add_row(
            f"{run.ratio:g} drives",
            *(_figure(run, name) for name in ("records_per_second", "joules_per_record")),
            format_bytes(run.link_bytes_per_record),
            _median_step(run),
            *(_figure(run, name, ".3g") for name in ("speedup", "energy_factor")),
        )
    console.print(table)
    console.print(IN_BRACKETS)
    middle = report.runs[len(report.runs) // 2]
    print_classes(middle.classes, middle.ratio)
    base = middle.baseline
    rate, joules = (
        format_band(f"{getattr(base, name):.4g}", middle.bands.get(f"baseline.{name}"))
        for name in ("records_per_second", "joules_per_record")
    )
    console.print(
        f"of a step, {_figure(middle, 'exchange_seconds')} s are exchange and optimiser, neither reading nor "
        "computing\n"
        f"baseline: the host alone {rate} records/s, {joules} J and {format_bytes(base.link_bytes_per_record)} over "
        "its link per record; the drives are plain storage",
    )
    _print_end(report, middle.retunes)


def _figure(run: SimulatedRun | SimulatedTree, name: str, spec: str = ".4g") -> str:
    return format_band(format(getattr(run, name), spec), run.bands.get(name))


def _median_step(run: SimulatedRun | SimulatedTree) -> str:
    return format_band(f"{run.step_seconds[1]:.4g}", run.bands.get("step_seconds"))


def _print_end(report: SimulateReport | SimulateServersReport, retunes: list[SimulatedRetune]) -> None:
    """Print retunes, notes, what is assumed, and how long it took."""
    print_retunes(retunes)
    for note in report.notes:
        console.print(note, markup=False)
    print_assumed(report.assumed)
    clock = name_clock(report.clock, report.core_model)
    console.print(f"{report.steps} steps in {report.wall_seconds:.2f} s of wall time; clock: {clock}")


def print_assumed(figures: list[AssumedFigure]) -> None:
    """Print assumed figures in short, by profile; `csd-emu profiles` has their reasons."""
    counts = Counter(figure.profile for figure in figures)
    for profile in counts:
        names = ", ".join(figure.name for figure in figures if figure.profile == profile)
        console.print(f"[yellow]assumed[/] of {escape(profile)}: {escape(names)}")


def print_retunes(retunes: list[SimulatedRetune]) -> None:
    """Print the first few, and how many more there are."""
    for retune in retunes[:_SHOWN_RETUNES]:
        console.print(f"from step {retune.step}: {retune.reason}", markup=False)
    if len(retunes) > _SHOWN_RETUNES:
        console.print(f"and {len(retunes) - _SHOWN_RETUNES} more retunes")


def print_classes(classes: list[SimulatedClass], ratio: float) -> None:
    """Print what equal nodes did in the run in which a host is worth `ratio` drives."""
    table = Table(title=f"nodes, if a host is worth {ratio:g} drives", box=SIMPLE)
    for name in ("nodes", "profile", "first batch", "last batch", "busy"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in classes:
        first, last = (_span(pair) for pair in (each.first_batches, each.last_batches))
        table.add_row(str(each.nodes), each.profile, first, last, f"{each.busy_share:.0%}")
    console.print(table)


def _span(pair: list[int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"


_NAMES = {
    "compute": "compute and read",
    "drive_link": "drives' links",
    "host": "hosts' sum and optimiser",
    "server_link": "servers' links",
    "rack_uplink": "racks' uplinks",
    "hops": "all-reduce's latencies",
    "failures": "failures",
    "retunes": "retunes",
}


def print_servers_simulation(report: SimulateServersReport) -> None:
    """Print the runs over the hosts' band, and of the middle one where its seconds and bytes go."""
    title = f"{report.model} on {report.servers_file}: {report.servers} servers, {report.drives} drives"
    table = Table(title=f"{title}, tuner {report.tuner} (simulated)")
    for name in ("host is", "records/s", "of ideal", "J/record", "step s", "bottleneck", "beside compute"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in report.runs:
        table.add_row(
            f"{run.ratio:g} drives",
            _figure(run, "records_per_second"),
            f"{run.efficiency:.1%}",
            _figure(run, "joules_per_record"),
            _median_step(run),
            _NAMES[run.bottleneck],
            _NAMES[run.next_bottleneck],
        )
    console.print(table)
    console.print(IN_BRACKETS)
    middle = report.runs[len(report.runs) // 2]
    _print_seconds(middle)
    print_classes(middle.classes, middle.ratio)
    _print_network(report, middle)
    _print_end(report, middle.retunes)


def _print_seconds(run: SimulatedTree) -> None:
    table = Table(title="where the seconds go", box=SIMPLE)
    for name in ("", "s per step", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for part, name in _NAMES.items():
        seconds, band, steps = getattr(run.seconds, part), run.bands.get(f"seconds.{part}"), len(run.steps)
        per_step = None if band is None else Band(band.low / steps, band.high / steps)
        table.add_row(name, format_band(f"{seconds / steps:.4g}", per_step), f"{seconds / run.array_seconds:.1%}")
    console.print(table)


def _print_network(report: SimulateServersReport, run: SimulatedTree) -> None:
    steps, crossed, losses = len(run.steps), run.bytes, run.losses
    compared = ", ".join(f"{name} {seconds:.4g} s" for name, seconds in run.allreduce_seconds.items())
    every = "" if report.reduce_every == 1 else f", every {report.reduce_every} steps"
    console.print(
        f"bytes per step: {format_bytes(crossed.drive_links / steps)} between hosts and drives, "
        f"{format_bytes(crossed.server_links / steps)} out of servers, "
        f"{format_bytes(crossed.rack_uplinks / steps)} out of racks\n"
        f"an all-reduce of all servers{every}: {compared}; this run: {report.allreduce}\n"
        f"lost: {losses.servers_lost} servers ({losses.servers_back} came back), "
        f"{losses.drives_lost} drives ({losses.drives_back} came back)",
    )

"""Simulations of several servers, for people."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table

from csd_lab.cli.tables.simulation import print_assumed, print_classes, print_retunes
from csd_lab.simulate.tree_figures import SimulatedTree, SimulateServersReport
from firmware_agent.common.units import format_bytes
from host.core.console import console, print_whole

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
            f"{run.records_per_second:.4g}",
            f"{run.efficiency:.1%}",
            f"{run.joules_per_record:.4g}",
            f"{run.step_seconds[1]:.4g}",
            _NAMES[run.bottleneck],
            _NAMES[run.next_bottleneck],
        )
    print_whole(table)
    middle = report.runs[len(report.runs) // 2]
    _print_seconds(middle)
    print_classes(middle.classes, middle.ratio)
    _print_network(report, middle)
    print_retunes(middle.retunes)
    for note in report.notes:
        console.print(note, markup=False, soft_wrap=True)
    print_assumed(report.assumed)
    console.print(f"{report.steps} steps in {report.wall_seconds:.2f} s of wall time; clock: {report.clock}")


def _print_seconds(run: SimulatedTree) -> None:
    table = Table(title="where the seconds go", box=SIMPLE)
    for name in ("", "s per step", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for part, name in _NAMES.items():
        seconds = getattr(run.seconds, part)
        table.add_row(name, f"{seconds / len(run.steps):.4g}", f"{seconds / run.array_seconds:.1%}")
    print_whole(table)


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
        soft_wrap=True,
    )

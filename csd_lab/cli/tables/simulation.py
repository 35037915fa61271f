"""Simulations, for people."""

from __future__ import annotations

from collections import Counter

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from csd_lab.simulate.simulation_figures import SimulatedClass, SimulatedRetune, SimulateReport
from firmware_agent.common.units import format_bytes
from host.core.console import console, print_whole
from host.monitoring.report.comparison import AssumedFigure

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
            f"{run.records_per_second:.4g}",
            f"{run.joules_per_record:.4g}",
            format_bytes(run.link_bytes_per_record),
            f"{run.step_seconds[1]:.4g}",
            f"{run.speedup:.3g}",
            f"{run.energy_factor:.3g}",
        )
    print_whole(table)
    middle = report.runs[len(report.runs) // 2]
    print_classes(middle.classes, middle.ratio)
    base = middle.baseline
    console.print(
        f"of a step, {middle.exchange_seconds:.4g} s are exchange and optimiser, neither reading nor computing\n"
        f"baseline: the host alone {base.records_per_second:.4g} records/s, {base.joules_per_record:.4g} J and "
        f"{format_bytes(base.link_bytes_per_record)} over its link per record; the drives are plain storage",
        soft_wrap=True,
    )
    print_retunes(middle.retunes)
    for note in report.notes:
        console.print(note, markup=False, soft_wrap=True)
    print_assumed(report.assumed)
    console.print(f"{report.steps} steps in {report.wall_seconds:.2f} s of wall time; clock: {report.clock}")


def print_assumed(figures: list[AssumedFigure]) -> None:
    """Print assumed figures in short, by profile; `csd-emu profiles` has their reasons."""
    counts = Counter(figure.profile for figure in figures)
    for profile in counts:
        names = ", ".join(figure.name for figure in figures if figure.profile == profile)
        console.print(f"[yellow]assumed[/] of {escape(profile)}: {escape(names)}", soft_wrap=True)


def print_retunes(retunes: list[SimulatedRetune]) -> None:
    """Print the first few, and how many more there are."""
    for retune in retunes[:_SHOWN_RETUNES]:
        console.print(f"from step {retune.step}: {retune.reason}", markup=False, soft_wrap=True)
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
    print_whole(table)


def _span(pair: list[int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"

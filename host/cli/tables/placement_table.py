"""Placement of layers, for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.box import SIMPLE
from rich.table import Table

from firmware_agent.common.units import format_bytes
from host.cli.placement_report import CutReport, LayerCosts, PlanReport
from host.core.console import console, print_whole
from host.policies.split.cut_decision import CutRow

# Of many cuts the best are shown; all are in --json.
SHOWN = 16
_COLUMNS = ("host begins with", "step s", "drive s", "host s", "link/step", "bytes moved", "compute moved")


def print_plan(report: PlanReport) -> None:
    """Print everything that was planned."""
    shape = "x".join(map(str, report.input_shape))
    if report.placement is not None:
        print_placement(report.placement, f"{report.model} at {shape} on {report.array}")


def print_placement(plan: CutReport, title: str) -> None:
    """Print a row for each of the best cuts, which one is chosen and why, and why others cannot be."""
    table = Table(title=f"Placement: {title}", box=SIMPLE, padding=(0, 1, 0, 0))
    for number, name in enumerate((*_COLUMNS, "drive memory", "")):
        table.add_column(name, justify="left" if number in (0, len(_COLUMNS) + 1) else "right", no_wrap=True)
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

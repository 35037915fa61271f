"""Table of `csd-emu calibrate`."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table

from firmware_agent.common.units import format_bytes
from host.app.calibration_report import CalibrationOutcome, CalibrationReport
from host.core.console import console


def print_calibration(report: CalibrationReport) -> None:
    """Print a calibration table, and the rows that were measured again."""
    shape = "x".join(map(str, report.input_shape))
    table = Table(
        title=f"{report.model} at {shape}, seconds per step (clock: {report.clock})", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    real = bool(report.drive)
    for name in ("batch", "forward", "backward", "update", "step", report.profile, "memory", "layers", "wall s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        phases = row.reference_seconds
        seconds = (phases.forward, phases.backward, phases.update, phases.total, row.profile_seconds.total)
        cells = [f"{value:.4g}" for value in seconds]
        memory = format_bytes(row.peak_memory_bytes)
        table.add_row(str(row.batch_size), *cells, memory, _layers_cell(row), f"{row.wall_seconds:.0f}")
    console.print(table)
    console.print(
        (
            f"measured on drive {report.drive}, a {report.profile}, by its own clock; the steps of a batch scatter by "
            f"{max(row.spread for row in report.rows):.1%} at most; memory: the agent's peak\n"
            if real
            else f"forward to step: on the counted 1 GIPS core; {report.profile}: the step on that drive; memory: the "
            "agent's peak\n"
        )
        + f"copying the weights out: {report.encode_seconds:.4g} s; layers: how many were measured, and how much "
        "longer a pass took that was watched for it, which is taken off",
        soft_wrap=True,
    )
    for again in report.verified:
        console.print(
            f"batch {again.batch_size} again: {again.measured_seconds:.6g} s, the table says "
            f"{again.table_seconds:.6g} s ({again.relative_difference:+.2%}, {report.tolerance:.0%} allowed)"
        )
    console.print(f"{report.wall_seconds:.0f} s of wall time; table: {report.path}", soft_wrap=True)


def _layers_cell(row: CalibrationOutcome) -> str:
    """Return how many layers were measured, and how much longer the forward and backward pass took for that."""
    if row.layers is None:
        return "-"
    whole = row.reference_seconds.forward + row.reference_seconds.backward
    watched = row.layers.watched.forward + row.layers.watched.backward
    longer = f" ({watched / whole - 1:+.1%})" if whole else ""
    return f"{len(row.layers.layers)}{longer}"

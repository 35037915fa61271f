"""`csd-emu fidelity` on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table

from host.app.real_drive import FidelityReport
from host.core.console import console


def print_fidelity(report: FidelityReport) -> None:
    """Print how far drive and emulation differ, and what would make them agree."""
    title = f"{report.drive} against an emulated {report.profile}, seconds per step"
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("model", "batch", f"emulated ({report.emulated_clock})", f"drive ({report.drive_clock})"):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for name in ("drive / emulated", "spread", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        mark = " *" if row.extrapolated else ""
        table.add_row(
            *(row.model, f"{row.batch_size}{mark}", f"{row.emulated_seconds:.4g}", f"{row.drive_seconds:.4g}"),
            *(f"{row.ratio:.3f}", f"{row.spread:.1%}", str(row.steps)),
        )
    console.print(table)
    if any(row.extrapolated for row in report.rows):
        console.print("* the counted table has no such row: what it says was interpolated", soft_wrap=True)
    for fit in report.fits:
        console.print(
            f"{fit.kind} phases: the profile's scale is {fit.profile_scale:.4g}, {fit.fitted_scale:.4g} would fit "
            f"(worst error left: {fit.worst_error:.1%})",
            soft_wrap=True,
        )
    for figure in report.suggested:
        console.print(f"profile {figure.name}: {figure.now:.4g} now, {figure.fitted:.4g} fitted", soft_wrap=True)
    console.print(f"{report.wall_seconds:.0f} s of wall time", soft_wrap=True)

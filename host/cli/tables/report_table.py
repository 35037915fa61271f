"""Text that `csd-emu report` prints."""

from __future__ import annotations

from host.core.console import console
from host.monitoring.report.formats import format_share
from host.monitoring.report.report_page import ReportOutput


def print_report(report: ReportOutput) -> None:
    """Print where the report is, and the comparison in short."""
    for note in report.notes:
        console.print(note, soft_wrap=True)
    comparison = report.comparison
    if comparison.band:
        slow, fast = comparison.band[-1], comparison.band[0]
        console.print(
            f"against a host that trains alone: {slow.speedup:.3g} to {fast.speedup:.3g} times its speed, "
            f"bytes over the link saved: {format_share(comparison.saved_share)}",
            soft_wrap=True,
        )
    elif comparison.reason:
        console.print(f"no comparison of time and energy: {comparison.reason}", soft_wrap=True)
    console.print(f"report: {report.report}", soft_wrap=True)

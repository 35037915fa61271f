"""Table of `csd-emu bench`."""

from __future__ import annotations

from rich.table import Table

from csd_lab.bench.bench_report import BenchReport
from host.core.console import console


def print_bench(report: BenchReport) -> None:
    """Print a bench's figures; the raw samples are in the JSON form."""
    table = Table("figure", "value", title=f"{report.bench} ({report.engine}, clock: {report.clock})")
    for name, value in report.figures.items():
        table.add_row(name, f"{value:.6g}")
    console.print(table)

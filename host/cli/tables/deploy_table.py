"""The outcome of `csd-emu deploy`, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from firmware_agent.common.units import format_bytes
from host.core.console import console, print_whole
from host.deploy.deploy_report import DeployReport, DriveOutcome
from host.deploy.verb_protocol import VerbResult

_COLOURS = {
    VerbResult.DONE.value: "green",
    VerbResult.UNCHANGED.value: "green",
    VerbResult.PLANNED.value: "cyan",
    VerbResult.SKIPPED.value: "yellow",
    VerbResult.FAILED.value: "red",
}


def print_deploy(report: DeployReport, columns: Sequence[str]) -> None:
    """Print the text that drives gave, if any, a table of all drives, then a line for each on which it failed.

    Args:
        report: what was done.
        columns: names of facts that the table shows.
    """
    for drive in report.drives:
        if "text" in drive.facts:
            _print_text(drive.drive, str(drive.facts["text"]))
    shown = [name for name in columns if any(drive.facts.get(name) is not None for drive in report.drives)]
    table = Table("drive", "result", *(_heading(name) for name in shown), "what")
    for drive in report.drives:
        bad = drive.result == VerbResult.FAILED.value
        table.add_row(
            drive.drive,
            f"[{_COLOURS[drive.result]}]{drive.result}[/]",
            *(escape(_text(name, drive.facts.get(name))) for name in shown),
            "see below" if bad else escape(drive.what),
        )
    print_whole(table)
    for drive in report.drives:
        if drive.result == VerbResult.FAILED.value:
            console.print(f"[red]✗[/] {drive.drive}: {escape(drive.what)}", soft_wrap=True)
    console.print(f"{_count(report.drives)}; {report.wall_seconds:.1f} s of wall time")


def _print_text(drive: str, text: str) -> None:
    """Print lines that a drive wrote, below its name."""
    console.print(f"[bold]{drive}:[/]")
    for line in text.splitlines():
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _heading(name: str) -> str:
    """Return a fact's name without its unit, which its figures have."""
    return name.removesuffix("_per_second").removesuffix("_bytes").removesuffix("_seconds").replace("_", " ")


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes_per_second"):
        return f"{format_bytes(value)}/s"
    if name.endswith("_bytes"):
        return format_bytes(value)
    return f"{value:.1f} s" if name.endswith("_seconds") else str(value)


def _count(drives: Sequence[DriveOutcome]) -> str:
    results = [drive.result for drive in drives]
    counts = ", ".join(f"{results.count(one.value)} {one.value}" for one in VerbResult if one.value in results)
    return f"{len(results)} drive{'s' * (len(results) != 1)}: {counts}"

"""The gate's verdicts, for people."""

from __future__ import annotations

from rich.table import Table

from host.app.gate.gate_checks import Verdict, format_band
from host.app.gate.gate_report import GateReport, list_changes, remedy
from host.core.console import console, print_whole
from host.core.summary import format_accuracy


def print_gate(report: GateReport) -> None:
    """Print every figure with its band, and of what fails why and what to do."""
    table = Table("figure", "expected", "measured", "change", "band", "clock", "verdict")
    for row in report.figures:
        measured = "no number" if row.measured is None else f"{row.measured:.6g} {row.unit}"
        change = "" if row.change is None else f"{row.change:+.3%}"
        colour = "green" if row.verdict is Verdict.WITHIN else "red"
        verdict = f"[{colour}]{row.verdict}[/]"
        table.add_row(row.figure, f"{row.expected:.6g}", measured, change, format_band(row.band), row.clock, verdict)
    print_whole(table)
    failing = [row for row in report.figures if row.verdict is not Verdict.WITHIN]
    for row in failing:
        console.print(f"{row.figure} is {row.verdict}: {remedy(row)}", soft_wrap=True, markup=False)
    if failing:
        console.print(list_changes(report.changed), soft_wrap=True, markup=False)
    for failure in report.failures:
        console.print(f"failed: {failure}", soft_wrap=True, markup=False)
    for note in report.notes:
        console.print(note, soft_wrap=True, markup=False)
    summary = report.summary
    if summary.target_accuracy is not None and not summary.reached:
        accuracy = format_accuracy(summary.accuracy)
        console.print(f"accuracy {accuracy}: the job's target {summary.target_accuracy} was missed")
    verdict = "written" if report.written else "passed" if report.passed else "failed"
    console.print(f"baseline {report.baseline}: {verdict}; run directory: {summary.run_directory}", soft_wrap=True)

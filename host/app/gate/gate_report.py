"""Report of the gate: what `csd-emu ci run --json` prints, and JUnit test cases."""

from __future__ import annotations

import msgspec

from host.app.gate.gate_checks import Compared, Verdict, format_band
from host.app.gate.junit import JUnitCase
from host.core.summary import Summary, format_accuracy

_REMEDIES = {
    Verdict.WORSE: "find what made it worse; if that is meant, make the baseline anew with --update-baseline",
    Verdict.BETTER: "make the baseline anew with --update-baseline, or the next loss of as much will not be seen",
    Verdict.UNUSABLE: "look at the run's report for what went wrong",
}


class GateReport(msgspec.Struct, frozen=True):
    """`csd-emu ci run`.

    Attributes:
        passed: every figure is within its band, nothing else failed, and the job's target, if any, was reached.
        baseline: the file that was compared with, or written.
        written: whether it was written, in which case nothing was compared.
        figures: one per figure of the baseline.
        failures: what else fails the run: lost drives, rounds that trained on nothing.
        changed: what is not as it was when the baseline was written; that alone fails nothing.
        notes: what must be known of this run.
        summary: of the run.
    """

    passed: bool
    baseline: str
    written: bool
    figures: list[Compared]
    failures: list[str]
    changed: list[str]
    notes: list[str]
    summary: Summary


def describe(compared: Compared) -> str:
    """Return one figure for people: what was expected, measured and allowed, and on which clock."""
    measured = "no number" if compared.measured is None else f"{compared.measured:.6g}"
    change = "" if compared.change is None else f", {compared.change:+.3%}"
    return (
        f"{compared.figure}: expected {compared.expected:.6g} {compared.unit} {format_band(compared.band)}, "
        f"measured {measured}{change} (clock: {compared.clock})"
    )


def explain(compared: Compared, changed: list[str]) -> str:
    """Return why a figure fails, what has changed since the baseline, and what to do."""
    return f"{describe(compared)}: {compared.verdict}\n{list_changes(changed)}\n{remedy(compared)}"


def list_changes(changed: list[str]) -> str:
    """Return what has changed since the baseline, in one line."""
    if not changed:
        return "nothing that is known has changed since the baseline"
    return f"changed since the baseline: {'; '.join(changed)}"


def remedy(compared: Compared) -> str:
    """Return what to do about a figure that fails."""
    return _REMEDIES[compared.verdict]


def list_cases(report: GateReport) -> list[JUnitCase]:
    """Return the test cases: that the job ran, each figure, and the job's target if it has one."""
    summary = report.summary
    notes = "\n".join([f"run directory: {summary.run_directory}", *report.notes])
    failures = "\n".join(report.failures) or None
    cases = [JUnitCase("run", summary.wall_seconds, notes, failure=failures)]
    for compared in report.figures:
        failed = compared.verdict is not Verdict.WITHIN
        failure = explain(compared, report.changed) if failed else None
        cases.append(JUnitCase(compared.figure, output=describe(compared), failure=failure))
    if summary.target_accuracy is not None:
        reached = f"accuracy {format_accuracy(summary.accuracy)}, the job's target is {summary.target_accuracy:.4f}"
        cases.append(JUnitCase("target", output=reached, failure=None if summary.reached else f"{reached}: missed"))
    return cases

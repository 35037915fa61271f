"""`csd-emu report` and `csd-emu top`: a run that has ended, or goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csd_emu.util.paths import Paths
from host.cli.commands.history import compare
from host.cli.common_options import Json, Trust, complete_array
from host.core.console import StageProgress, console, print_json
from host.core.interrupts import INTERRUPTS
from host.monitoring.report.formats import format_share

if TYPE_CHECKING:
    from host.monitoring.report.report_page import ReportOutput
    from host.monitoring.report.run_decisions import Explanation


def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="a run directory, finished or not")],
    output: Annotated[Path | None, typer.Option("--output", help="the file; by default report.html in DIR")] = None,
    others: Annotated[
        list[str] | None, typer.Option("--compare", metavar="RUN", help="beside these runs: csd-emu compare's page")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run again: one HTML file that needs nothing else."""
    if others:
        compare([str(run), *others], run.parent, output or run / "comparison.html", trust, as_json)
        return
    with INTERRUPTS.deferred():
        from host.monitoring.report.report_page import write_report
    with StageProgress(quiet=as_json) as progress:
        progress.stage("write the report")
        result = write_report(run, output, trust)
    print_json(result) if as_json else print_report(result)


def explain(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="a run directory, finished or not")],
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Say what the tuners of a run decided: what from which step on, why, and what came of it."""
    with INTERRUPTS.deferred():
        from host.monitoring.report.load_run import load_run
        from host.monitoring.report.run_decisions import explain_run
    explanation = explain_run(load_run(run, trust))
    print_json(explanation) if as_json else print_explanation(explanation)


def print_explanation(explanation: Explanation) -> None:
    """Print a run's decisions, one after the other."""
    if not explanation.decisions:
        console.print("no tuner decided anything: the run has no synchronous steps")
    for each in explanation.decisions:
        measured = f", {each.rate_ratio:.3f} times the records/s ({explanation.clock})" if each.rate_ratio else ""
        console.print(f"from step {each.step}: {each.knob}: {each.value}{measured}", markup=False)
        expected = f" (expected: {each.expected})" if each.expected else ""
        console.print(f"    {each.reason or 'why is not recorded'}{expected}", markup=False)


def print_report(report: ReportOutput) -> None:
    """Print where the report is, and the comparison in short."""
    for note in report.notes:
        console.print(note)
    if (comparison := report.comparison).band:
        slow, fast = comparison.band[-1], comparison.band[0]
        console.print(
            f"against a host that trains alone: {slow.speedup:.3g} to {fast.speedup:.3g} times its speed, "
            f"bytes over the link saved: {format_share(comparison.saved_share)}",
        )
    elif comparison.reason:
        console.print(f"no comparison of time and energy: {comparison.reason}")
    console.print(f"report: {report.report}")


def top(
    array: Annotated[
        str | None,
        typer.Argument(help="name of the array; not needed if only one run goes on", autocompletion=complete_array),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="show it once, with means since the run began")] = False,
    interval: Annotated[float, typer.Option(help="seconds between looks", min=0.1, max=3600)] = 1.0,
    as_json: Json = False,
) -> None:
    """Show a run in progress: its drives, their speed and power in device time, what it has cost."""
    with INTERRUPTS.deferred():
        from host.cli.top_report import ScrapeWindow, find_run, make_report, render, scrape, watch
        from host.monitoring.run_registry import list_live

    arrays = Paths.default().arrays
    run = find_run(list_live(arrays), array)
    if not once and not as_json:
        with contextlib.suppress(KeyboardInterrupt):
            watch(run, interval, lambda: run in list_live(arrays))
    else:
        report = make_report(run, ScrapeWindow(None, scrape(run)))
        print_json(report) if as_json else console.print(render(report, console.width, "since the run began"))

"""`csd-emu ci run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError
from host.app.gate.gate_checks import Verdict, format_band
from host.app.gate.gate_report import list_changes, remedy
from host.cli.common_options import ArrayOption, EngineOption, JobFile, Json
from host.cli.json_output import print_json
from host.core.console import StageProgress, console, print_whole
from host.core.interrupts import INTERRUPTS
from host.core.summary import format_accuracy

if TYPE_CHECKING:
    from host.app.gate.gate_report import GateReport

ci_app = typer.Typer(no_args_is_help=True, help="Gates for continuous integration (docs/ci.md).")


@ci_app.callback()
def ci() -> None:
    """Keep `run` a command of its own, though it is the only one."""


@ci_app.command("run")
def ci_run(
    job: JobFile,
    array: ArrayOption,
    baseline: Annotated[Path, typer.Option(metavar="BASE.JSON", help="the file to compare with")],
    junit: Annotated[Path | None, typer.Option(metavar="OUT.XML", help="write the verdicts as JUnit XML")] = None,
    band: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=SHARE",
            help="of accuracy, records_per_device_second or joules_per_record; 1% if neither this nor the baseline "
            "says otherwise, 'none' leaves it out; can be repeated",
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write-baseline", help="make the baseline of this run")] = False,
    update: Annotated[bool, typer.Option("--update-baseline", help="the same, in place of one that is there")] = False,
    allow_losses: Annotated[
        bool, typer.Option(help="a drive that is lost does not fail the gate: the job is about that")
    ] = False,
    engine: EngineOption = None,
    runs: Annotated[Path, typer.Option(help="folder for run directories")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Run a job and fail if accuracy, records per device second or joules per record leave their band."""
    from host.app.gate.junit import remove_old, saying_errors

    if junit is not None:
        remove_old(junit)
    with saying_errors(junit, "csd-emu", {}):
        if write and update:
            raise ConfigurationError("give --write-baseline or --update-baseline, not both")
        with INTERRUPTS.deferred():
            from host.app.gate.gate_checks import parse_bands
            from host.app.gate.run_gate import Gate, run_gate
            from host.app.prepare import prepare_run
            from host.config.resolve import resolve_run

            gate = Gate(baseline, junit, parse_bands(band or []), write or update, update, allow_losses)
            request = prepare_run(resolve_run(job, array, engine and engine.value))
        with StageProgress(quiet=as_json) as progress:
            report = run_gate(request, gate, Paths.default(), runs, progress, quiet=as_json)
    print_json(report) if as_json else print_gate(report)
    raise typer.Exit(0 if report.passed else 1)


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

"""End of a run: summary, timeline, final weights, and the report are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from csd_emu.util.progress import Progress
from firmware_agent.common.slices import Array
from host.app.run_request import RunRequest
from host.core.console import errors
from host.core.failures import Failure
from host.core.interrupts import INTERRUPTS
from host.core.summary import Summary, summarise
from host.monitoring.run_directory import METRICS_FILE, REPORT_FILE, RunDirectory, write_result
from host.monitoring.run_trace import write_slices, write_trace
from host.policies.selection.selection_report import read_plan


def finish_run(
    request: RunRequest,
    directory: RunDirectory,
    weights: Mapping[str, Array],
    wall_seconds: float,
    failures: Sequence[Failure] = (),
) -> Summary:
    """Write down how a run ended: timeline, slices of overlapping steps, final weights, summary.

    One in which code of the user's failed has not succeeded, and may have no round.
    """
    plan = read_plan(directory.path) if request.planning is not None else None
    job, target = request.job, request.job.target
    summary = summarise(
        directory.read_rounds(),
        array=request.config.name,
        engine=request.config.engine_label,
        model=job.model,
        target_accuracy=target.accuracy if target is not None else None,
        reached=False,
        wall_seconds=wall_seconds,
        run_directory=str(directory.path),
        seed=job.seed,
        chosen=None if plan is None else plan.chosen.name,
        mode=job.mode,
        failures=list(failures),
    )
    if not failures and (target is None or (summary.accuracy is not None and summary.accuracy >= target.accuracy)):
        summary = msgspec.structs.replace(summary, reached=True)
    write_trace(directory.path, directory.read_rounds(), request.config.name)
    if slices := directory.read_slices():
        write_slices(directory.path, slices, request.config.name)
    directory.finish(summary, weights)
    return summary


def report_run(directory: Path, progress: Progress, metrics: bytes | None = None) -> None:
    """Write the report of what there is, and the last metrics; a failure is said and loses nothing else of the run."""
    with INTERRUPTS.deferred():
        progress.stage(f"write {directory / REPORT_FILE}")
        try:
            if metrics is not None:
                write_result(directory / METRICS_FILE, metrics)
            from host.monitoring.report.report_page import (
                write_report,  # matplotlib's import takes longer than a start may
            )

            write_report(directory, trusted=True)
        except Exception as error:  # whatever it is, the run is done and its records are safe
            progress.stage("")
            errors.print(f"csd-emu: no report was written: {error}", style="yellow", markup=False)
        progress.stage("")

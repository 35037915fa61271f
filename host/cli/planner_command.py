"""`csd-emu plan --prefer`: which devices train a job, by a few steps of it or tables alone; its table and picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from csd_emu.config.engine_names import ArrayChanges
from csd_emu.config.servers_file import ServersConfig
from csd_emu.util.config_files import load_config
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import ConfigurationError
from host.app.prepare import RunRequest, prepare_run
from host.app.run_job import NewRun, run_job
from host.cli.placement_report import PlanReport
from host.config.job_file import read_job
from host.config.overrides import given_keys
from host.config.resolve import JobChanges, resolve_run
from host.core.console import console, figures_table, print_json, print_summary
from host.core.device_time import MODELLED
from host.core.failures import failed_run
from host.core.figure_bands import IN_BRACKETS, describe_ends, format_band, stack_band
from host.core.summary import name_clock
from host.monitoring.report.charts.chart_figure import write_picture
from host.monitoring.report.charts.plan_chart import plan_chart
from host.policies.selection.cluster import Range
from host.policies.selection.planner_protocol import TrialDecision, batches_by_node
from host.policies.selection.selection_report import (
    ConfigurationRow,
    SelectionReport,
    read_plan,
)

_MEASURED_IN_A_RUN = (
    "to have devices measured, let all servers choose in their run: csd-emu run --servers SERVERS.YAML --server NAME "
    "--prefer ..."
)


def read_planned(
    job: Path,
    array: Path | None,
    servers: Path | None,
    changes: ArrayChanges,
    tuner: str | None,
    keys: Mapping[str, Any],
    what: str,
) -> RunRequest:
    """Read a job and its array or servers, with these `keys` in place of its section ``planner``'s.

    Raises:
        ConfigurationError: they do not fit together, or neither the job nor `keys` say `what` is to be planned.
    """
    if "prefer" not in keys and read_job(job).planner is None:
        raise ConfigurationError(f"say what to plan: {what}")
    # All servers plan alike: any of them will do.
    first = None if servers is None else (servers, load_config(servers, ServersConfig).names[0])
    given = given_keys({"tuner": tuner}) | {f"planner.{key}": value for key, value in keys.items()}
    return prepare_run(resolve_run(job, array, changes, JobChanges(given), first))


def plan_from_tables(request: RunRequest) -> PlanReport:
    """Return what the calibration tables say; nothing is started.

    Raises:
        ConfigurationError: there are no tables, or nothing is feasible.
    """
    if (planning := request.planning) is None:
        raise ConfigurationError("planner: the job has no such section; add one, for example planner: {prefer: edp}")
    if unknown := [kind.name for kind in planning.cluster.kinds if kind.speed is None]:
        measured = "leave --from-tables out, with --steps of 1 or more, so that it is measured"
        raise ConfigurationError(
            f"how fast {', '.join(unknown)} trains {request.spec.name!r} is in no calibration table that this array's "
            f"clock can use; {measured if request.server_group is None else _MEASURED_IN_A_RUN}"
        )
    planner = planning.make_planner()
    plan = planner.decide()
    decided = TrialDecision(planning.cluster, plan, batches_by_node(planner, plan.chosen), 0)
    return _report(request, planning.describe(decided, MODELLED))


def plan_devices(
    request: RunRequest, paths: Paths, runs: Path, progress: Progress, quiet: bool, apply: bool
) -> PlanReport:
    """Decide: by tables if the job asks for no steps; else in a run, in steps that count.

    Start the array for that, or take the one that is up, and go on to the end with `apply`.

    Raises:
        ConfigurationError: nothing is feasible; what was trained until then is kept.
        UserCodeFailed: code of the user's failed before it was decided.
        CsdError: as `host.app.run_job.run_job`.
    """
    if (section := request.job.planner) is not None and not section.steps and not apply:
        return plan_from_tables(request)
    if request.server_group is not None:
        raise ConfigurationError(f"--servers is planned with --from-tables, which starts nothing; {_MEASURED_IN_A_RUN}")
    summary = run_job(request, paths, NewRun(runs), progress, quiet, plan_only=not apply)
    devices = read_plan(Path(summary.run_directory))
    if summary.failures and (devices is None or not apply):
        raise failed_run(summary.failures, summary.run_directory)
    if devices is None:
        raise ConfigurationError(f"{summary.run_directory}: the run has decided nothing; start it again")
    return msgspec.structs.replace(_report(request, devices), summary=summary, applied=apply)


def _report(request: RunRequest, devices: SelectionReport) -> PlanReport:
    return PlanReport(
        model=request.job.model,
        input_shape=list(request.shape),
        array=request.config.name if request.server_group is None else request.server_group.config.name,
        placement=None,
        devices=devices,
        core_model=request.config.core_model,
    )


# Of many configurations the best are shown, and the whole Pareto front; more are in --json.
SHOWN = 12
# Intervals are symmetric in the logarithm: wider ones than this, over the value, have their two ends shown.
_WIDE = 0.2
_COLUMNS = ("records\n/step", "step s", "time s", "mean W", "energy J", "J x s", "measured")


def show_devices(report: PlanReport, plot: Path | None, as_json: bool) -> None:
    """Draw and print what was decided, and what came of the training if it was gone on with."""
    if plot is not None and report.devices is not None:
        write_picture(plan_chart(report.devices), plot)
    print_json(report) if as_json else print_devices(report)
    if report.applied and report.summary is not None and not as_json:
        print_summary(report.summary)


def print_devices(report: PlanReport) -> None:
    """Print the best configurations, the front, what was measured, why the first one wins, and how to go on."""
    if (plan := report.devices) is None:
        return
    shape = "x".join(map(str, report.input_shape))
    _print_table(plan, f"Devices: {report.model} at {shape} on {report.array}, best for {plan.prefer}")
    rests_on = _rests_on(plan, name_clock(plan.clock, report.core_model))
    for line in (*(f"* {reason}" for reason in plan.reasons), *(f"note: {note}" for note in plan.notes), rests_on):
        _say(line)
    batches = ", ".join(f"{node} {batch}" for node, batch in plan.nodes.items())
    ends = f"; {describe_ends(plan.chosen.name, plan.at_ends)}" if plan.at_ends else ""
    gap = f"; the search was not exact and may have missed {plan.gap:.2%}" if plan.gap else ""
    sure = f"{plan.sure:.0%} sure that no other is better by more than 1 %{gap}"
    _say(f"chosen: {plan.chosen.name} (records per step: {batches}); {sure}{ends}")
    if (summary := report.summary) is not None and not report.applied:
        _say(f"go on with it: csd-emu run --resume {summary.run_directory}")
        _say(f"the {plan.trial_steps} steps of pre-training are kept there; report.html in it shows the Pareto front")


def _print_table(plan: SelectionReport, title: str) -> None:
    work = () if plan.same_work else ("records",)
    table = figures_table(title, ("devices", *work, *_COLUMNS, ""), left=("devices", ""))
    front = {row.name for row in plan.front}
    shown = shown_rows(plan)
    for row in shown:
        chosen = row.name == plan.chosen.name
        marks = [*(["<- chosen"] if chosen else []), *(["Pareto front"] if row.name in front else [])]
        own = [f"{row.trained_records:,.0f}"] if work else []
        table.add_row(row.name, *own, *_cells(row), "\n".join(marks), style="bold" if chosen else None)
    console.print(table)
    if (left := plan.feasible - len(shown)) > 0:
        _say(f"{left} more keep to the limits; --json has the best of them")


def shown_rows(plan: SelectionReport) -> list[ConfigurationRow]:
    """Return the best configurations, and behind them what else is on the Pareto front."""
    best = plan.ranked[:SHOWN]
    names = {row.name for row in best}
    return [*best, *(row for row in plan.front if row.name not in names)]


def _cells(row: ConfigurationRow) -> list[str]:
    """Return what a row shows; a band has lines of its own."""
    ranges = {"seconds": row.seconds, "watts": row.watts, "joules": row.joules, "edp": row.edp}
    figures = {"step_seconds": f"{row.step_seconds:.4g}"} | {name: _interval(each) for name, each in ranges.items()}
    shown = (stack_band(format_band(text, row.bands.get(name))) for name, text in figures.items())
    return [str(row.records), *shown, f"{row.steps_measured} steps" if row.steps_measured else "-"]


def _interval(value: Range) -> str:
    if value.half > _WIDE:
        return f"{value.low:.4g} ..\n{value.high:.4g}"
    return f"{value.value:.4g} ±{value.half:.1%}" if value.half else f"{value.value:.4g}"


def _rests_on(plan: SelectionReport, clock: str) -> str:
    work = f"{plan.records:,.0f} records" if plan.same_work else "the records that each can reach"
    brackets = f", {IN_BRACKETS}" if plan.at_ends else ""
    what = f"for {work}, clock: {clock}, intervals of {plan.confidence:.0%}{brackets}"
    if not plan.trials:
        return f"estimates {what}; nothing was measured: all rests on calibration tables"
    steps = [format_band(f"{row.step_seconds:.4g} s", row.bands.get("step_seconds")) for row in plan.trials]
    tried = "; ".join(f"{row.name}: {row.steps} steps of {own}" for row, own in zip(plan.trials, steps, strict=True))
    return f"estimates {what}; measured in {plan.trial_steps} steps that count: {tried}"


def _say(text: str) -> None:
    console.print(text, markup=False)

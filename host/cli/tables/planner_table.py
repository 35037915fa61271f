"""Table of the devices that train."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table

from host.cli.placement_report import PlanReport
from host.core.console import console, print_whole
from host.policies.selection.selection_report import ConfigurationRow, EstimateInterval, SelectionReport

# Of many configurations the best are shown, and the whole Pareto front; more are in --json.
SHOWN = 12
# Intervals are symmetric in the logarithm: wider ones than this, over the value, have their two ends shown.
_WIDE = 0.2
_COLUMNS = ("records/step", "step s", "time s", "mean W", "energy J", "J x s", "measured")


def print_devices(report: PlanReport) -> None:
    """Print the best configurations, the front, what was measured, why the first one wins, and how to go on."""
    if (plan := report.devices) is None:
        return
    shape = "x".join(map(str, report.input_shape))
    _print_table(plan, f"Devices: {report.model} at {shape} on {report.array}, best for {plan.prefer}")
    for reason in plan.reasons:
        _say(f"* {reason}")
    for note in plan.notes:
        _say(f"note: {note}")
    _say(_rests_on(plan))
    batches = ", ".join(f"{node} {batch}" for node, batch in plan.nodes.items())
    _say(f"chosen: {plan.chosen.name} (records per step: {batches}); {_sure(plan)}")
    if (summary := report.summary) is not None and not report.applied:
        _say(f"go on with it: csd-emu run --resume {summary.run_directory}")
        _say(f"the {plan.trial_steps} steps of pre-training are kept there; report.html in it shows the Pareto front")


def _print_table(plan: SelectionReport, title: str) -> None:
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    work = () if plan.same_work else ("records",)
    for name in ("devices", *work, *_COLUMNS, ""):
        table.add_column(name, justify="left" if name in ("devices", "") else "right", no_wrap=True)
    front = {row.name for row in plan.front}
    shown = shown_rows(plan)
    for row in shown:
        chosen = row.name == plan.chosen.name
        marks = [*(["<- chosen"] if chosen else []), *(["Pareto front"] if row.name in front else [])]
        own = [f"{row.trained_records:,.0f}"] if work else []
        table.add_row(row.name, *own, *_cells(row), ", ".join(marks), style="bold" if chosen else None)
    print_whole(table)
    if (left := plan.feasible - len(shown)) > 0:
        _say(f"{left} more keep to the limits; --json has the best of them")


def shown_rows(plan: SelectionReport) -> list[ConfigurationRow]:
    """Return the best configurations, and behind them what else is on the Pareto front."""
    best = plan.ranked[:SHOWN]
    names = {row.name for row in best}
    return [*best, *(row for row in plan.front if row.name not in names)]


def _cells(row: ConfigurationRow) -> list[str]:
    return [
        str(row.records),
        f"{row.step_seconds:.4g}",
        *(_interval(each) for each in (row.seconds, row.watts, row.joules, row.edp)),
        f"{row.steps_measured} steps" if row.steps_measured else "-",
    ]


def _interval(value: EstimateInterval) -> str:
    if value.half > _WIDE:
        return f"{value.low:.4g} .. {value.high:.4g}"
    return f"{value.value:.4g} ±{value.half:.1%}" if value.half else f"{value.value:.4g}"


def _rests_on(plan: SelectionReport) -> str:
    work = f"{plan.records:,.0f} records" if plan.same_work else "the records that each can reach"
    what = f"for {work}, clock: {plan.clock}, intervals of {plan.confidence:.0%}"
    if not plan.trials:
        return f"estimates {what}; nothing was measured: all rests on calibration tables"
    tried = "; ".join(f"{row.name}: {row.steps} steps of {row.step_seconds:.4g} s" for row in plan.trials)
    return f"estimates {what}; measured in {plan.trial_steps} steps that count: {tried}"


def _sure(plan: SelectionReport) -> str:
    gap = f"; the search was not exact and may have missed {plan.gap:.2%}" if plan.gap else ""
    return f"{plan.sure:.0%} sure that no other is better by more than 1 %{gap}"


def _say(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)

"""Page that shows runs beside each other: table of figures, what differs in configuration, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from host.core.owned_files import write_whole
from host.core.records import RoundRecord
from host.core.run_stats import RunStats
from host.monitoring.charts.chart import MOST_LINES, Chart, Pane, Point, make_lines, thin
from host.monitoring.report.charts.chart_svg import draw_chart
from host.monitoring.report.load_run import RunData
from host.monitoring.report.report_page import page_environment
from host.monitoring.runs.run_comparison import RunComparison


def curve_charts(groups: Mapping[str, Sequence[RunData]]) -> list[Chart]:
    """Return accuracy, or loss where no run predicts classes, over rounds and over array seconds.

    There is a line for each of the first `MOST_LINES` runs.
    """
    named = [
        (name if len(runs) == 1 else f"{name}, seed {run.job.get('seed', number)}", run.rounds)
        for name, runs in groups.items()
        for number, run in enumerate(runs, 1)
        if run.rounds
    ][:MOST_LINES]
    if not named:
        return []
    clock = " / ".join(dict.fromkeys(RunStats.of(rounds).clock for _, rounds in named))
    of_classes = any(isfinite(each.accuracy) for _, rounds in named for each in rounds)
    what, high = ("accuracy", 1.02) if of_classes else ("loss", None)

    def value(each: RoundRecord) -> float:
        return each.accuracy if of_classes else each.test_loss

    def pane(points: Mapping[str, Sequence[Point]]) -> list[Pane]:
        return [Pane(curves=make_lines(points.items()), unit=what, low=0.0, high=high)]

    def points(rounds: Sequence[RoundRecord], over_rounds: bool) -> list[Point]:
        return thin([(float(each.round) if over_rounds else each.end_seconds, value(each)) for each in rounds])

    ends = "; ".join(f"{name} {value(rounds[-1]):.4f}" for name, rounds in named)
    told = f"{what.capitalize()} on held-out records at the end: {ends}."
    return [
        Chart(
            name="compared-rounds",
            title=f"{what.capitalize()} over rounds",
            caption=f"{what.capitalize()} of the host's weights on held-out records.",
            told=told,
            x_title="round",
            panes=pane({name: points(rounds, True) for name, rounds in named}),
            whole=True,
        ),
        Chart(
            name="compared-time",
            title=f"{what.capitalize()} over array seconds",
            caption=f"Array seconds ({clock}): compute, flash and link of the drives, composed. Not wall time.",
            told=told,
            x_title=f"array seconds ({clock})",
            panes=pane({name: points(rounds, False) for name, rounds in named}),
        ),
    ]


def write_comparison(comparison: RunComparison, groups: Mapping[str, Sequence[RunData]], output: Path) -> None:
    """Write the page: one HTML file that needs nothing else.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    charts = [draw_chart(chart) for chart in curve_charts(groups)]
    template = page_environment().get_template("compared.html.j2")
    page = template.render(comparison=comparison, charts=charts, names=[(name, "") for name in comparison.names]).encode("utf-8", "replace")
    write_whole(output, page, "free space, or give another file with --output", "the comparison")

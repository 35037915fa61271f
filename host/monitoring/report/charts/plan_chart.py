"""The chart of a plan: what each configuration costs in time and power, and which of them nothing beats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from host.monitoring.report.charts.svg import INK, NARROW, SERIES, WIDE, Chart, draw, legend, printable
from host.policies.selection.selection_report import ConfigurationRow, SelectionReport

_HEIGHT = 300.0
# So many points of the front have their name beside them.
_NAMED = 3


def plan_chart(plan: SelectionReport | None) -> Chart | None:
    """Return the chart of time against mean power; None without a plan."""
    if plan is None:
        return None
    told = f"{len(plan.front)} of {len(plan.ranked)} configurations are on the front; {plan.chosen.name} was chosen"
    pictures = [
        draw(
            f"plan-{kind}",
            f"Time and mean power of configurations: {told}.",
            (width, _HEIGHT),
            lambda figure: paint_front(figure, plan, SERIES[0], SERIES[1], INK),
        )
        for kind, width in (("narrow", NARROW), ("wide", WIDE))
    ]
    return Chart(
        "plan",
        "What each configuration would cost",
        f"Estimates of the whole training ({plan.clock}) with their intervals of {plan.confidence:.0%}. Joined: the "
        "Pareto front; whatever is beaten in neither time nor mean power is not beaten in energy, their product, "
        "either. Dashed: as much energy as the chosen one.",
        *pictures,
    )


def paint_front(figure: Figure, plan: SelectionReport, others: str, front: str, chosen: str) -> None:
    """Draw the configurations of a plan in these colours."""
    axes = figure.subplots()
    joined = sorted(plan.front, key=lambda row: row.seconds.value / row.trained_records)
    names = {row.name for row in joined}
    work = plan.chosen.trained_records
    _points(axes, [row for row in plan.ranked if row.name not in names], work, others, "o", "others")
    _points(axes, joined, work, front, "s", "Pareto front")
    axes.plot(*_places(joined, work), color=front, linewidth=1.2)
    x, y = _places([plan.chosen], work)
    axes.plot(x, y, "o", markersize=13, markerfacecolor="none", markeredgecolor=chosen, label="chosen")
    for number, row in enumerate(_named(plan, joined)):
        at = row.seconds.value * work / row.trained_records, row.watts.value
        text, place = printable(row.name, 30), (6, 9 if number % 2 else -13)
        axes.annotate(text, at, xytext=place, textcoords="offset points", color=chosen, fontsize="small")
    axes.set_xscale("log")
    axes.margins(x=0.2, y=0.15)
    limits = axes.get_xlim(), axes.get_ylim()
    seconds = np.geomspace(*limits[0], 100)
    axes.plot(seconds, plan.chosen.joules.value / seconds, color=others, linestyle="--", linewidth=0.9)
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
    of = "the training" if plan.same_work else "as many records as the chosen one has"
    axes.set_xlabel(f"time of {of}, seconds ({plan.clock})")
    axes.set_ylabel("mean power, watts")
    legend(figure, axes, 3)


def _named(plan: SelectionReport, front: Sequence[ConfigurationRow]) -> list[ConfigurationRow]:
    """Return the chosen one, the ends of the front, and the best others of it."""
    ends = {row.name for row in (*front[:1], *front[-1:])}
    ranked = sorted(front, key=lambda row: row.name not in ends)
    return [plan.chosen, *(row for row in ranked if row.name != plan.chosen.name)][:_NAMED]


def _points(axes: Axes, rows: Sequence[ConfigurationRow], work: float, colour: str, marker: str, label: str) -> None:
    if not rows:
        return
    x, y = _places(rows, work)
    spans = [
        [
            [scale * max(0.0, own.value - own.low), scale * max(0.0, own.high - own.value)]
            for own, scale in ((row.seconds, work / row.trained_records), (row.watts, 1.0))
        ]
        for row in rows
    ]
    errors = [list(zip(*(span[axis] for span in spans), strict=True)) for axis in (0, 1)]
    axes.errorbar(
        *(x, y), xerr=errors[0], yerr=errors[1], fmt=marker, markersize=4, color=colour, elinewidth=0.8, label=label
    )


def _places(rows: Sequence[ConfigurationRow], work: float) -> tuple[list[float], list[float]]:
    """Return seconds of so many records, and watts: not every configuration has as many within its reach."""
    return [row.seconds.value * work / row.trained_records for row in rows], [row.watts.value for row in rows]

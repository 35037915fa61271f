"""The chart of a plan: what each configuration costs in time and energy, and which of them nothing beats."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from host.planner.report import ConfigurationRow, DevicePlan
from host.report.svg import INK, NARROW, SERIES, WIDE, Chart, draw, legend, printable

_HEIGHT = 300.0
# So many points have their name beside them.
_NAMED = 6


def plan_chart(plan: DevicePlan | None) -> Chart | None:
    """Return the chart of time against energy; None without a plan."""
    if plan is None:
        return None
    told = f"{len(plan.front)} of {len(plan.ranked)} configurations are on the front; {plan.chosen.name} was chosen"
    pictures = [
        draw(
            f"plan-{kind}",
            f"Time and energy of configurations: {told}.",
            (width, _HEIGHT),
            lambda figure: paint_front(figure, plan, SERIES[0], SERIES[1], INK),
        )
        for kind, width in (("narrow", NARROW), ("wide", WIDE))
    ]
    return Chart(
        "plan",
        "What each configuration would cost",
        f"Estimates of the whole training ({plan.clock}) with their intervals of {plan.confidence:.0%}; joined: the "
        "Pareto front, none of which is beaten in time and energy both.",
        *pictures,
    )


def paint_front(figure: Figure, plan: DevicePlan, others: str, front: str, chosen: str) -> None:
    """Draw the configurations of a plan in these colours."""
    axes = figure.subplots()
    joined = sorted(plan.front, key=lambda row: row.seconds.value)
    names = {row.name for row in joined}
    _points(axes, [row for row in plan.ranked if row.name not in names], others, "o", "others")
    _points(axes, joined, front, "s", "Pareto front")
    axes.plot(*_places(joined), color=front, linewidth=1.2)
    x, y = _places([plan.chosen])
    axes.plot(x, y, "o", markersize=13, markerfacecolor="none", markeredgecolor=chosen, label="chosen")
    shown = [plan.chosen, *(row for row in plan.ranked if row.name in names and row.name != plan.chosen.name)]
    for row in shown[:_NAMED]:
        place = row.seconds.value, row.joules.value
        text = printable(row.name, 34)
        axes.annotate(text, place, xytext=(5, 5), textcoords="offset points", color=chosen, fontsize="small")
    axes.margins(x=0.15, y=0.12)
    axes.set_xlabel(f"time of the training, seconds ({plan.clock})")
    axes.set_ylabel("energy, joules")
    legend(figure, axes, 3)


def _points(axes: Axes, rows: Sequence[ConfigurationRow], colour: str, marker: str, label: str) -> None:
    if not rows:
        return
    x, y = _places(rows)
    spans = [
        [[max(0.0, own.value - own.low), max(0.0, own.high - own.value)] for own in (row.seconds, row.joules)]
        for row in rows
    ]
    errors = [list(zip(*(span[axis] for span in spans), strict=True)) for axis in (0, 1)]
    axes.errorbar(
        *(x, y), xerr=errors[0], yerr=errors[1], fmt=marker, markersize=4, color=colour, elinewidth=0.8, label=label
    )


def _places(rows: Sequence[ConfigurationRow]) -> tuple[list[float], list[float]]:
    return [row.seconds.value for row in rows], [row.joules.value for row in rows]

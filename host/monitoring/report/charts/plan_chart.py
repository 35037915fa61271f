"""The chart of a plan: what each configuration costs in time and power, and which of them nothing beats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from host.monitoring.charts.chart import Chart, Curve, Pane, make_curve
from host.policies.selection.cluster import Range
from host.policies.selection.selection_report import ConfigurationRow, SelectionReport

# So many points of the front have their name beside them.
_NAMED = 3


def plan_chart(plan: SelectionReport) -> Chart:
    """Return the chart of time against mean power."""
    chosen, front = plan.chosen, sorted(plan.front, key=lambda row: row.seconds.value / row.trained_records)
    names = {row.name for row in front}
    others = [row for row in plan.ranked if row.name not in names]
    work = chosen.trained_records
    rows = [*others, *front, chosen]
    xs = [x for row in rows for x in _reach(row.seconds, work / row.trained_records)]
    ys = [y for row in rows for y in _reach(row.watts)]
    widened, margin = (max(xs) / min(xs)) ** 0.2 * 1.02, 0.15 * ((max(ys) - min(ys)) or max(ys))
    x_range, limits = (min(xs) / widened, max(xs) * widened), (min(ys) - margin, max(ys) + margin)
    seconds = np.geomspace(*x_range, 100)
    same_energy = [(x, chosen.joules.value / x) for x in seconds if limits[0] <= chosen.joules.value / x <= limits[1]]
    curves = [
        make_curve("", same_energy, "s1", dash="dash"),
        *([_points(others, work, "others", "s1", "circle")] if others else []),
        _points(front, work, "Pareto front", "s2", "square"),
        make_curve("", _places(front, work), "s2"),
        make_curve("chosen", _places([chosen], work), "ink", points="ring"),
    ]
    of = "the training" if plan.same_work else "as many records as the chosen one has"
    told = f"{len(plan.front)} of {len(plan.ranked)} configurations are on the front; {chosen.name} was chosen"
    return Chart(
        name="plan",
        title="What each configuration would cost",
        caption=f"Estimates of the whole training ({plan.clock}) with their intervals of {plan.confidence:.0%}. Joined"
        ": the Pareto front; whatever is beaten in neither time nor mean power is not beaten in energy, their product, "
        "either. Dashed: as much energy as the chosen one.",
        told=f"Time and mean power of configurations: {told}.",
        x_title=f"time of {of}, seconds ({plan.clock})",
        panes=[Pane(curves=curves, unit="mean power, watts", low=limits[0], high=limits[1])],
        notes=[(*_places([row], work)[0], row.name) for row in _named(plan, front)],
        x_range=x_range,
        x_log=True,
        wide=True,
    )


def _named(plan: SelectionReport, front: Sequence[ConfigurationRow]) -> list[ConfigurationRow]:
    """Return the chosen one, the ends of the front, and the best others of it."""
    ends = {row.name for row in (*front[:1], *front[-1:])}
    ranked = sorted(front, key=lambda row: row.name not in ends)
    return [plan.chosen, *(row for row in ranked if row.name != plan.chosen.name)][:_NAMED]


def _places(rows: Sequence[ConfigurationRow], work: float) -> list[tuple[float, float]]:
    """Return seconds of so many records, and watts: not every configuration has as many within its reach."""
    return [(row.seconds.value * work / row.trained_records, row.watts.value) for row in rows]


def _points(rows: Sequence[ConfigurationRow], work: float, name: str, colour: str, shape: str) -> Curve:
    places = _places(rows, work)
    spans = []
    for row, (x, y) in zip(rows, places, strict=True):
        (left, right), (below, above) = _reach(row.seconds, work / row.trained_records), _reach(row.watts)
        spans.append((x - left, right - x, y - below, above - y))
    return make_curve(name, places, colour, points=shape, spans=spans)


def _reach(estimate: Range, scale: float = 1.0) -> tuple[float, float]:
    """Return the ends of an interval, around its value, and not so low that a logarithmic axis has no place for it."""
    value = estimate.value
    return scale * min(value, max(estimate.low, value / 10)), scale * max(value, estimate.high)

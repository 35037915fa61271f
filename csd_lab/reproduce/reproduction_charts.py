"""The charts of reproductions, as SVG files of their own."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from csd_lab.reproduce.hypertune_result import Beside, DisturbanceFigures, Scaling
from csd_lab.reproduce.planner_result import Choosing, Sensitivity

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "csd-emu",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.3,
    "figure.facecolor": "white",
}
OURS, _BAND, _LEFT, PUBLISHED = "#1f5fa8", "#9dbfe3", "#b5651d", "#555555"


def draw_speedup(scaling: Sequence[Scaling], beside: Sequence[Beside]) -> bytes:
    """Return speed-up and energy factor against computing drives: the middle of the band, and the band; SVG.

    One column per model; published headlines are dashed lines, for their numbers of drives are not known.
    """
    models = list(dict.fromkeys(row.model for row in scaling))

    def paint(figure: Figure) -> None:
        grid = figure.subplots(2, len(models), sharex=True, sharey="row", squeeze=False)
        for column, model in enumerate(models):
            own = [row for row in scaling if row.model == model]
            for axes, name in zip(grid[:, column], ("speedup", "energy_factor"), strict=True):
                _band(axes, own, name)
                for line in beside:
                    if line.figure == name:
                        axes.axhline(line.published, color=PUBLISHED, linewidth=0.8, linestyle="--")
            grid[0, column].set_title(model)
            grid[1, column].set_xlabel("computing drives")
        grid[0, 0].set_ylabel("speed-up (simulated)")
        grid[1, 0].set_ylabel("energy factor (simulated)")
        figure.suptitle(
            "Against a host that trains alone, over the band of what a host is worth; dashed: published maxima",
            fontsize=9,
        )

    return draw_svg((2.6 * len(models), 5.0), paint)


def draw_disturbance(rows: Sequence[DisturbanceFigures]) -> bytes:
    """Return throughput while a node is disturbed, against the share of its speed that it lost, first model; SVG."""
    first = [row for row in rows if row.model == rows[0].model]
    nodes = list(dict.fromkeys(row.node for row in first))

    def paint(figure: Figure) -> None:
        grid = figure.subplots(1, len(nodes), sharey=True, squeeze=False)
        for axes, node in zip(grid[0], nodes, strict=True):
            own = [row for row in first if row.node == node]
            lost = [row.lost for row in own]
            for name, label, colour, style in (
                ("ceiling", "ceiling 1 - f h", PUBLISHED, "--"),
                ("retuned", "retuned", OURS, "-"),
                ("during_without", "left as it was", _LEFT, "-"),
            ):
                shares = [float(getattr(row, name)) / row.before for row in own]
                axes.plot(lost, shares, style, color=colour, label=label, marker="o", markersize=3)
            axes.set_title(f"{node} ({own[0].share:.1%} of the batch)")
            axes.set_xlabel("share of its speed that it lost")
            axes.set_ylim(0, 1.05)
        grid[0, 0].set_ylabel("throughput over undisturbed (simulated)")
        grid[0, -1].legend(frameon=False)
        figure.suptitle(f"{rows[0].model}: a disturbed node, without and with HyperTune", fontsize=9)

    return draw_svg((7.6, 3.4), paint)


def _band(axes: Axes, rows: Sequence[Scaling], name: str) -> None:
    ratios = sorted({row.ratio for row in rows})
    lines = {ratio: [(row.drives, float(getattr(row, name))) for row in rows if row.ratio == ratio] for ratio in ratios}
    drives = [number for number, _ in lines[ratios[0]]]
    low, middle, high = ([value for _, value in lines[ratio]] for ratio in ratios)
    axes.fill_between(drives, low, high, color=_BAND, alpha=0.5, linewidth=0)
    axes.plot(drives, middle, color=OURS)


def draw_svg(inches: tuple[float, float], paint: Callable[[Figure], None]) -> bytes:
    """Return what `paint` paints, as an SVG that is the same each time."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=inches, layout="constrained")
        paint(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


_LABELS = {"steps": "steps of each trial", "noise": "noise of a step"}


def draw_planner(choosing: Sequence[Choosing], sensitivity: Sequence[Sensitivity], published: float) -> bytes:
    """Return hit rates of all who choose, and hit rate and regret against steps and noise; SVG.

    The dashed line is the published hit rate, which is of other cases.
    """

    def paint(figure: Figure) -> None:
        kinds = list(dict.fromkeys(row.of for row in sensitivity))
        axes = figure.subplots(1, 1 + len(kinds), squeeze=False, width_ratios=[1.4, *([1.0] * len(kinds))])[0]
        _bars(axes[0], choosing, published)
        for each, kind in zip(axes[1:], kinds, strict=True):
            _lines(each, [row for row in sensitivity if row.of == kind], published)
            each.set_xlabel(_LABELS.get(kind, kind))
        figure.suptitle("Choosing the devices that train, simulated; dashed: published, of other cases", fontsize=9)

    return draw_svg((12.0, 3.4), paint)


def _bars(axes: Axes, choosing: Sequence[Choosing], published: float) -> None:
    names = [row.who for row in choosing]
    axes.barh(names, [row.hit_rate for row in choosing], color=OURS)
    axes.axvline(published, color=PUBLISHED, linewidth=0.8, linestyle="--")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("hit rate")


def _lines(axes: Axes, rows: Sequence[Sensitivity], published: float) -> None:
    values = [row.value for row in rows]
    axes.plot(values, [row.hit_rate for row in rows], marker="o", markersize=3, color=OURS, label="hit rate")
    shares = axes.twinx()  # they are a hundredth of a hit rate
    for name, style in (("mean_regret", "-"), ("overhead", "--"), ("time_error", ":")):
        figures = [float(getattr(row, name)) for row in rows]
        shares.plot(values, figures, style, marker=".", markersize=3, color=PUBLISHED, label=name.replace("_", " "))
    axes.axhline(published, color=PUBLISHED, linewidth=0.8, linestyle="--")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("hit rate")
    shares.set_ylim(bottom=0)
    shares.grid(visible=False)
    shares.set_ylabel("shares")
    shares.legend(frameon=False, loc="lower right")

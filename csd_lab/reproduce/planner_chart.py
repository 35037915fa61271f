"""The chart of the planner's reproduction, as an SVG file of its own."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from csd_lab.reproduce.planner_result import Choosing, Sensitivity
from csd_lab.reproduce.reproduction_charts import OURS, PUBLISHED, draw_svg

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

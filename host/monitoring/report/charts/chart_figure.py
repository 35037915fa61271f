"""Charts as matplotlib figures in plain colours: for notebooks, and for files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.monitoring.charts.chart import Chart
from host.monitoring.report.charts.chart_svg import paint_chart

_STYLE: dict[Any, Any] = {
    **{"svg.hashsalt": "csd-emu", "svg.fonttype": "none"},
    **{"axes.spines.top": False, "axes.spines.right": False},
}
_COLOURS = {
    **{"s1": "#9aa7b5", "s2": "#1f5fa8", "s3": "#2f8f6b", "s4": "#b3541e", "s5": "#7a4fa3", "s6": "#c08a1e"},
    **{"s7": "#3d8ea8", "s8": "#a33f5f", "ink": "#222222", "muted": "#666666", "rule": "#cccccc", "surface": "#ffffff"},
}
_FORMATS = (".svg", ".png", ".pdf")
_WIDTH_INCHES, _PANE_INCHES, _KEY_COLUMNS = 8.0, 2.4, 3


def draw_figure(charts: Sequence[Chart], pane_inches: float = _PANE_INCHES) -> Figure:
    """Return a figure with charts below each other, under their titles."""
    with mpl.rc_context(_STYLE):
        heights = [pane_inches * len(chart.panes) + 1 for chart in charts]
        figure = Figure(figsize=(_WIDTH_INCHES, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(charts), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, chart in zip(parts, charts, strict=True):
            part.suptitle(chart.title, fontsize="medium")
            paint_chart(part, chart, _COLOURS, _KEY_COLUMNS)
    return figure


def check_picture(path: Path | None) -> None:
    """Return if a picture can be called so, or none is asked for.

    Raises:
        ConfigurationError: it cannot.
    """
    if path is not None and (path.suffix not in _FORMATS or not path.absolute().parent.is_dir()):
        raise ConfigurationError(f"--plot {path}: give a file in a folder that is there, as {', '.join(_FORMATS)}")


def write_picture(chart: Chart, path: Path) -> None:
    """Write a chart to a file of `check_picture`.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, 5), layout="constrained")
        paint_chart(figure, chart, _COLOURS, _KEY_COLUMNS)
        save_picture(figure, path)


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure to a file of `check_picture`.

    Raises:
        EnvironmentUnfit: it cannot be written.
    """
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise EnvironmentUnfit(f"{path}: cannot be written ({error}); give another file with --plot") from error

"""The Pareto front of a plan as a picture of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.monitoring.report.charts.plan_chart import paint_front
from host.policies.selection.selection_report import SelectionReport

_STYLE: dict[Any, Any] = {
    **{"svg.hashsalt": "csd-emu", "svg.fonttype": "none"},
    **{"axes.spines.top": False, "axes.spines.right": False},
}
_FORMATS = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Return if a picture can be called so.

    Raises:
        ConfigurationError: it cannot.
    """
    if path.suffix not in _FORMATS or not path.absolute().parent.is_dir():
        raise ConfigurationError(f"--plot {path}: give a file in a folder that is there, as {', '.join(_FORMATS)}")


def write_plot(plan: SelectionReport, path: Path) -> None:
    """Write time against mean power of the configurations.

    Raises:
        EnvironmentUnfit: the file cannot be written.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 5), layout="constrained")
        paint_front(figure, plan, "#9aa7b5", "#1f5fa8", "#222222")
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise EnvironmentUnfit(f"{path}: cannot be written ({error}); give another file with --plot") from error

"""Comparison of runs, for terminals and notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from host.app.python_api.run_result import RunResult
from host.monitoring.runs.run_comparison import FigureColumn, RunComparison, compare_runs

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Group = RunResult | Sequence[RunResult]
_FORMAT: Any = {"float_format": "{:.5g}".format}


class ComparedRuns:
    """Runs beside each other; each group is a run, or runs of one job with different seeds."""

    def __init__(self, groups: dict[str, list[RunResult]]) -> None:
        """Take the groups, by name."""
        self._groups = {name: [run.data for run in runs] for name, runs in groups.items()}

    @cached_property
    def data(self) -> RunComparison:
        """All figures, with differences, verdicts and what differs in configuration."""
        return compare_runs(self._groups)

    @property
    def table(self) -> pandas.DataFrame:
        """One row a figure; of each group after the first also the difference, and whether it is more than noise."""
        from host.monitoring.runs.run_tables import make_frame

        return make_frame(
            [
                {"figure": row.figure, "clock": row.clock}
                | {
                    key: value
                    for name, column in zip(self.data.names, row.columns, strict=True)
                    for key, value in _cells(name, column).items()
                }
                for row in self.data.figures
            ]
        )

    def plot(self) -> Figure:
        """Return accuracy over rounds and array seconds, a line a run."""
        from host.monitoring.report.charts.chart_figure import draw_figure
        from host.monitoring.runs.comparison_page import curve_charts

        return draw_figure(curve_charts(self._groups))

    def __repr__(self) -> str:
        """Return the table as text, and what differs in configuration."""
        return "\n".join([self._shown().to_string(index=False, **_FORMAT), *self._different()])

    def _repr_html_(self) -> str:
        different = "".join(f"<li>{html.escape(line)}</li>" for line in self._different())
        return f"{self._shown().to_html(index=False, **_FORMAT)}<ul>{different}</ul>"

    def _shown(self) -> pandas.DataFrame:
        return self.table.astype(object).where(self.table.notna(), "")

    def _different(self) -> list[str]:
        return [f"{key}: {' | '.join(map(str, values))}" for key, values in self.data.configuration.items()]


def compare(*groups: Group) -> ComparedRuns:
    """Compare runs, or groups of runs of one job with different seeds.

    >>> csd_emu.compare(run, other)  # doctest: +SKIP
    >>> csd_emu.compare(narrow_runs, wide_runs).table  # doctest: +SKIP

    Raises:
        ConfigurationError: there are fewer than two, or runs of one group differ in more than their seeds.
    """
    named: dict[str, list[RunResult]] = {}
    for number, group in enumerate(groups, 1):
        runs = [group] if isinstance(group, RunResult) else list(group)
        name = runs[0].name if runs else ""
        named[name if name not in named else f"{name} ({number})"] = runs
    comparison = ComparedRuns(named)
    comparison.data  # noqa: B018 - what it refuses is said now
    return comparison


def _cells(name: str, column: FigureColumn) -> dict[str, object]:
    cells: dict[str, object] = {name: column.mean, f"{name}: deviation": column.deviation}
    if column.verdict:
        cells |= {f"{name}: difference": column.difference, f"{name}: verdict": column.verdict}
    return cells

"""Result of a run: its figures, and tables of its rounds, devices and steps."""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from csd_emu.util.renamed import OLD_FIGURES, warn_of_old_name
from firmware_agent.common.errors import ConfigurationError
from host.core.run_stats import RunStats
from host.core.summary import Summary
from host.monitoring.report.load_run import RunData, check_run_directory, load_run
from host.monitoring.run_directory import METRICS_FILE
from host.monitoring.runs.run_tables import make_table

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


_MAIN_CHARTS = 5


class RunResult:
    """A run that has ended, or what there is of one that has not.

    >>> run.accuracy, run.records_per_device_second, run.clock  # doctest: +SKIP
    >>> run.rounds, run.devices, run.steps  # tables # doctest: +SKIP

    Attributes:
        directory: its run directory, with records, checkpoint, report and metrics.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Take a run directory; it is read when something of it is asked for."""
        self.directory = Path(directory)

    @cached_property
    def data(self) -> RunData:
        """All that the run directory says.

        Raises:
            ConfigurationError: it is no run directory, another user's, or damaged.
        """
        return load_run(self.directory)

    @property
    def name(self) -> str:
        """What it is called: by its job, else its directory."""
        return str(self.data.job.get("name") or self.directory.name)

    @property
    def summary(self) -> Summary:
        """How it ended (docs/schemas/run.json).

        Raises:
            ConfigurationError: it has not.
        """
        if self.data.summary is None:
            raise ConfigurationError(f"{self.directory}: the run has not ended; its rounds so far are in .rounds")
        return self.data.summary

    @property
    def accuracy(self) -> float:
        """Of the final weights on held-out records, 0 to 1; NaN if no round has ended."""
        return math.nan if self.summary.accuracy is None else self.summary.accuracy

    @property
    def clock(self) -> str:
        """What device seconds were measured with: ``counted``, ``sampled``, ``modelled`` or ``wall``."""
        return self.summary.clock

    @property
    def records_per_device_second(self) -> float:
        """Records trained on per second of the drives' compute."""
        return self.summary.records_per_device_second

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened to drives, in order: records of kind ``event``."""
        return [msgspec.to_builtins(event) for event in self.data.events]

    @property
    def metrics(self) -> str:
        """The metrics at the end of the run, as Prometheus would have scraped them."""
        return (self.directory / METRICS_FILE).read_text(encoding="utf-8")

    @property
    def joules_per_record(self) -> float:
        """Energy of the whole array by the power model, per record trained on."""
        return self.summary.joules_per_record

    @property
    def rounds(self) -> pandas.DataFrame:
        """One row a round."""
        return make_table("rounds", self.data.rounds)

    @property
    def devices(self) -> pandas.DataFrame:
        """One row a device and round; seconds are on the column ``clock``."""
        return make_table("devices", self.data.rounds)

    @property
    def steps(self) -> pandas.DataFrame:
        """One row a synchronous step; empty of a federated run."""
        return make_table("steps", self.data.rounds)

    def report(self) -> Path:
        """Write the report of the run, one HTML file that needs nothing else, and return where it is."""
        from host.monitoring.report.report_page import write_report

        return Path(write_report(self.directory).report)

    def plot(self) -> Figure:
        """Return the report's main charts: accuracy and loss, throughput, bytes and power; drawn inline in a notebook.

        Raises:
            ConfigurationError: no round has ended.
        """
        from host.monitoring.report.charts.chart_figure import draw_figure
        from host.monitoring.report.report_page import list_charts

        if not (charts := list_charts(self.data, RunStats.of(self.data.rounds, self.data.devices), [])):
            raise ConfigurationError(f"{self.directory}: no round has ended; there is nothing to draw")
        return draw_figure(charts[:_MAIN_CHARTS])

    def __getattr__(self, name: str) -> Any:
        """Return a figure by the name that it had in 0.1.0, for one release."""
        if name not in OLD_FIGURES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warn_of_old_name(name, OLD_FIGURES[name])
        return getattr(self, OLD_FIGURES[name])

    def __repr__(self) -> str:
        """Return what it is, for a console."""
        if self.data.summary is None:
            return f"<run {self.directory}: {len(self.data.rounds)} rounds so far>"
        one, model = self.summary, self.summary.model.rpartition("/")[2]
        return (
            f"<run {self.directory}: {model}, {one.rounds} rounds, accuracy {self.accuracy:.4f}, "
            f"{one.records_per_device_second:.1f} records per device second ({one.clock_text})>"
        )


def load_result(directory: str | os.PathLike[str]) -> RunResult:
    """Return the run in a run directory, ended or not, of this release or 0.1.0.

    >>> csd_emu.load("runs/20261129-120000-job").rounds  # doctest: +SKIP

    Raises:
        ConfigurationError: it is no run directory, or another user's.
    """
    check_run_directory(Path(directory))
    return RunResult(directory)

"""CSV and Parquet: tables of rounds, devices and steps in the run directory's folder ``tables``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from host.config.plugins.kinds import TRACKER
from host.monitoring.report.load_run import load_run
from host.monitoring.runs.run_tables import write_tables
from host.monitoring.trackers.tracker import TrackedRun


@TRACKER.register("csv", "Tables of rounds, devices and steps as CSV, in the run directory.")
class CsvTracker:
    """Writes the tables when the run has ended."""

    packages: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[Literal["csv", "parquet"]] = "csv"
    _directory = Path()

    def begin(self, run: TrackedRun) -> None:
        """Note where the run is."""
        self._directory = run.directory

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Nothing: all is in the records."""

    def finish(self, files: list[Path]) -> None:
        """Write the tables."""
        write_tables([load_run(self._directory)], self._directory / "tables", self.kind)


@TRACKER.register("parquet", "The same tables as Parquet; needs csd-emu[parquet].")
class ParquetTracker(CsvTracker):
    """Writes the tables when the run has ended."""

    packages = ("pyarrow",)
    kind = "parquet"

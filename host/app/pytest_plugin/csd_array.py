"""Array as a test has it: the fixture's value."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from csd_emu.util.renamed import warn_of_old_name
from host.app.python_api.job_content import JobLike
from host.app.python_api.open_array import INJECT_SECONDS, OpenArray
from host.app.python_api.run_handle import RUN_SECONDS, Run
from host.app.python_api.run_result import RunResult
from host.monitoring.run_directory import METRICS_FILE

_SHOWN_LINES = 40


class CsdArray(OpenArray):
    """An array of emulated drives; its runs go into a folder of the test's, one each.

    Attributes:
        harmed: whether a fault was injected, so that the next test gets another array.
        failed: whether the test has failed.
    """

    harmed = failed = False

    def train(
        self, job: JobLike | None = None, *, timeout_seconds: float | None = RUN_SECONDS, **options: Any
    ) -> RunResult:
        """Train a job, within half an hour unless more is given (see `OpenArray.train`)."""
        return super().train(job, timeout_seconds=timeout_seconds, **{"progress": False} | options)

    def run(self, job: JobLike, **options: Any) -> RunResult:
        """Old name of `train`, for one release."""
        warn_of_old_name("csd_array.run", "csd_array.train")
        return self.train(job, **options)

    def start(self, job: JobLike, **changes: Any) -> Run:
        """Old name of `submit`, for one release."""
        warn_of_old_name("csd_array.start", "csd_array.submit")
        return self.submit(job, **changes)

    def inject(self, *arguments: Any, **options: Any) -> str:
        """Inject a fault into one drive; the next test gets another array (see `OpenArray.inject`)."""
        self.harmed = True
        return super().inject(*arguments, **options)

    @property
    def metrics(self) -> str:
        """The metrics of the run that goes on or, if none does, of the last one; empty before the first."""
        for run in reversed(self._submitted):
            if run.directory is not None:
                path = run.directory / METRICS_FILE
                return path.read_text(encoding="utf-8") if path.exists() else self._scrape()
        return ""

    def describe(self) -> list[tuple[str, str]]:
        """Return what a report of a failing test shows: where the runs are, events, consoles, metrics."""
        runs = ", ".join(str(run.directory or "a run without a directory") for run in self._submitted) or "no run"
        sections = [
            (f"csd-emu array {self.name}", f"{len(self.devices)} drives ({self.engine}): {runs}"),
            *(
                (f"csd-emu events of run {number}", "\n".join(run.logs()) or "none")
                for number, run in enumerate(self._submitted, start=1)
            ),
            *(
                (f"csd-emu console {device}", "\n".join(self.console(device).splitlines()[-_SHOWN_LINES:]) or "nothing")
                for device in self.devices
            ),
        ]
        if self._submitted:
            # The values alone, without histograms' buckets: a report is read by people.
            values = [line for line in self.metrics.splitlines() if line[:1] != "#" and "_bucket{" not in line]
            sections.append(("csd-emu metrics", "\n".join(values) or "none"))
        return sections

    def save(self, folder: Path) -> None:
        """Copy run directories, consoles and metrics of this test into `folder`, in place of what is there."""
        shutil.rmtree(folder, ignore_errors=True)
        for run in self._submitted:
            if run.done and run.directory is not None:
                RunResult(run.directory).report()
        if self.runs.is_dir():
            shutil.copytree(self.runs, folder / "runs")
        (folder / "consoles").mkdir(parents=True, exist_ok=True)
        for device in self.devices:
            (folder / "consoles" / f"{device}.log").write_text(self.console(device), encoding="utf-8")
        (folder / "metrics.prom").write_text(self.metrics, encoding="utf-8")

    def _runs_folder(self) -> Path:
        return self.runs / f"run-{len(self._submitted) + 1}"

    def _scrape(self) -> str:
        live = next(iter(self._consoles.values())).parents[2] / "live.json"
        try:
            address = json.loads(live.read_text(encoding="utf-8"))["address"]
            with urllib.request.urlopen(address, timeout=INJECT_SECONDS) as answer:
                return str(answer.read().decode())
        except (OSError, ValueError, urllib.error.URLError):
            return ""

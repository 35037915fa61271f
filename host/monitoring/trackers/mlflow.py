"""MLflow: a run in the experiment that ``MLFLOW_EXPERIMENT_NAME`` names, on the server of ``MLFLOW_TRACKING_URI``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host.config.plugins.kinds import TRACKER
from host.monitoring.trackers.tracker import TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow refuses longer values, and more entries in one message.
_MOST_CHARACTERS = 500
_MOST_AT_ONCE = {"params": 100, "metrics": 1000}
# Metrics wait so long for later ones: together they cost MLflow's file store half as much.
_WAIT_SECONDS = 2.0


@TRACKER.register("mlflow", "A run of MLflow's, in a file store beside the runs or on a server; needs csd-emu[mlflow].")
class MlflowTracker:
    """Logs parameters, tags, metrics and files."""

    packages = ("mlflow",)
    _client: MlflowClient
    _run: str
    _sent = 0.0
    _waiting: tuple[Any, ...] = ()

    def begin(self, run: TrackedRun) -> None:
        """Make MLflow's run."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        # Else a server that is down is asked for minutes.
        for name, value in (("MAX_RETRIES", "1"), ("TIMEOUT", "10")):
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else 3.x refuses the store that needs no server
        where = os.environ.get("MLFLOW_TRACKING_URI") or (run.directory.parent / "mlruns").absolute().as_uri()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "csd-emu"
        self._client = client = MlflowClient(where)
        found = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if found is None else found.experiment_id
        tags = {f"csd_emu.{key}": value for key, value in run.tags.items()}
        self._run = client.create_run(number, run_name=run.name, tags=tags).info.run_id
        self._send("params", [Param(key, value[:_MOST_CHARACTERS]) for key, value in run.parameters.items()])

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics and those that wait; or have them wait for the next ones, or for the run's end."""
        from mlflow.entities import Metric

        now = time.time()
        self._waiting += tuple(Metric(name, value, int(now * 1000), step) for name, value in values.items())
        if now - self._sent >= _WAIT_SECONDS:
            self._send("metrics", self._waiting)
            self._waiting, self._sent = (), now

    def finish(self, files: list[Path]) -> None:
        """Log what waits, attach the files, and end MLflow's run."""
        self._send("metrics", self._waiting)
        for path in files:
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run)

    def _send(self, kind: str, entries: Any) -> None:
        for begin in range(0, len(entries), most := _MOST_AT_ONCE[kind]):
            self._client.log_batch(self._run, **{kind: entries[begin : begin + most]})

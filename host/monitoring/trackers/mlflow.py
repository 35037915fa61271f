"""MLflow: a run in the experiment that ``MLFLOW_EXPERIMENT_NAME`` names, on the server of ``MLFLOW_TRACKING_URI``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from host.config.plugins.kinds import TRACKER
from host.monitoring.trackers.tracker import TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow refuses longer values.
_MOST_CHARACTERS = 500


@TRACKER.register("mlflow", "A run of MLflow's, in a file store beside the runs or on a server; needs csd-emu[mlflow].")
class MlflowTracker:
    """Logs parameters, tags, metrics and files."""

    packages = ("mlflow",)
    _client: MlflowClient | None = None
    _run = ""

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
        parameters = [Param(key, value[:_MOST_CHARACTERS]) for key, value in run.parameters.items()]
        client.log_batch(self._run, params=parameters)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics at once."""
        if self._client is not None:
            from mlflow.entities import Metric

            now = int(time.time() * 1000)
            metrics = [Metric(name, value, now, step) for name, value in values.items()]
            self._client.log_batch(self._run, metrics=metrics)

    def finish(self, files: list[Path]) -> None:
        """Attach the files, and end MLflow's run."""
        if self._client is not None:
            for path in files:
                self._client.log_artifact(self._run, str(path))
            self._client.set_terminated(self._run)

"""MLflow, whose import starts a process."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from host.monitoring.report.load_run import load_run
from host.monitoring.trackers import mlflow as mlflow_tracker
from host.monitoring.trackers.tracker import TrackedRun
from tests.unit.host.monitoring.trackers.test_tracker_listener import copied, track


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_parameters_metrics_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    directory = copied(tmp_path, "federated")
    track("mlflow", directory)
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("csd-emu").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params) == ("wide", "FINISHED", {"rounds": "2"})
    history = {each.step: each.value for each in client.get_metric_history(run.info.run_id, "test/accuracy")}
    assert history == {r.round: r.accuracy for r in load_run(directory).rounds}
    assert "summary.json" in {each.path for each in client.list_artifacts(run.info.run_id)}
    assert run.data.tags["csd_emu.clock"] == "modelled"


@pytest.mark.filterwarnings("ignore")
def test_mlflow_is_told_at_once_then_every_two_seconds_and_of_more_than_one_message_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    seconds = count(1_000_000_000)
    monkeypatch.setattr(mlflow_tracker, "time", SimpleNamespace(time=lambda: float(next(seconds))))
    tracker = mlflow_tracker.MlflowTracker()
    parameters = {f"key_{number}": "1" for number in range(150)}
    tracker.begin(TrackedRun("wide", tmp_path / "a-run", parameters, {"clock": "modelled"}))
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("csd-emu").experiment_id])
    assert run.data.params == parameters
    seen = []
    for step in range(1, 5):
        tracker.log({f"drives/csd-{number}/loss": float(step) for number in range(1200)}, step)
        seen.append([each.step for each in client.get_metric_history(run.info.run_id, "drives/csd-1199/loss")])
    assert seen == [[1], [1], [1, 2, 3], [1, 2, 3]]
    tracker.finish([])
    assert [each.step for each in client.get_metric_history(run.info.run_id, "drives/csd-0/loss")] == [1, 2, 3, 4]

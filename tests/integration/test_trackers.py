"""MLflow, whose import starts a process."""

from pathlib import Path

import pytest

from host.monitoring.report.load_run import load_run
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

from pathlib import Path

import pytest
import yaml

from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.app.prepare import RunRequest
from host.app.stack import drives_container as drives
from host.app.stack import host_container as trainer
from host.app.stack.host_container import ensure_secret, find_unfinished
from host.app.stack.stack_settings import StackSettings
from host.fleet.array_state import present
from host.monitoring.run_directory import ARRAY_FILE, JOB_FILE, SUMMARY_FILE

JOB = "model: digits_cnn\ndata: {source: digits, partition: {dirichlet: 0.5}}\nrounds: 3\nseed: 5\n"


@pytest.fixture
def settings(tmp_path: Path) -> StackSettings:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(JOB)
    return StackSettings.read({"CSD_JOBS": str(tmp_path / "jobs"), "CSD_RUNS": str(tmp_path / "runs")})


@pytest.fixture
def request_(settings: StackSettings, paths: Paths) -> RunRequest:
    return trainer._read(settings, paths)


def begin_run(runs: Path, name: str, request: RunRequest, **changed: object) -> Path:
    """A run directory as a run leaves it that is killed in its first round."""
    directory = runs / name
    directory.mkdir(parents=True)
    (directory / ARRAY_FILE).write_text(yaml.safe_dump(request.config.model_dump(mode="json")))
    (directory / JOB_FILE).write_text(yaml.safe_dump(request.portable_job.model_dump(mode="json") | changed))
    return directory


def test_the_newest_run_of_this_job_goes_on_unless_it_is_done(settings: StackSettings, request_: RunRequest) -> None:
    runs = settings.runs
    assert find_unfinished(runs, request_) is None
    older = begin_run(runs, "20260101-000000-csd", request_)
    assert find_unfinished(runs, request_) == older
    newer = begin_run(runs, "20260102-000000-csd-2", request_)
    assert find_unfinished(runs, request_) == newer
    (newer / SUMMARY_FILE).touch()
    assert find_unfinished(runs, request_) is None


def test_a_run_of_another_job_or_a_damaged_one_does_not_go_on(settings: StackSettings, request_: RunRequest) -> None:
    directory = begin_run(settings.runs, "20260101-000000-csd", request_, seed=6)
    assert find_unfinished(settings.runs, request_) is None
    (directory / JOB_FILE).write_text("{")
    assert find_unfinished(settings.runs, request_) is None


def test_the_drives_hold_what_the_host_asks_for(settings: StackSettings, request_: RunRequest) -> None:
    up = drives.read_request(settings)
    assert (up.config, up.data, up.seed) == (request_.config, request_.array.data, request_.job.seed)


def test_a_job_that_is_not_there_is_said_by_both(settings: StackSettings, paths: Paths) -> None:
    settings.job_file.unlink()
    for read in (lambda: drives.read_request(settings), lambda: trainer._read(settings, paths)):
        with pytest.raises(ConfigurationError, match=r"job\.yaml: cannot be read"):
            read()


def test_the_host_waits_for_whoever_keeps_the_array_up(paths: Paths) -> None:
    with pytest.raises(EnvironmentUnfit, match="docker-compose logs drives"):
        trainer._wait_for_array("csd", paths, Deadline(0.0))
    with present(paths.presence("csd")):
        trainer._wait_for_array("csd", paths, Deadline(0.0))


async def test_drives_without_a_relay_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentUnfit, match=r"socat.*not installed"):
        await drives.relay("host", 7000)


def test_a_secret_is_made_once(tmp_path: Path) -> None:
    path = ensure_secret(tmp_path, "word")
    secret = path.read_text()
    assert len(secret) >= 32
    assert ensure_secret(tmp_path, "word").read_text() == secret
    assert [entry.name for entry in tmp_path.iterdir()] == ["word"]
    (tmp_path / "other").mkdir()
    assert ensure_secret(tmp_path / "other", "word").read_text() != secret

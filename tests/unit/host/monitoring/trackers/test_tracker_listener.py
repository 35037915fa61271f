"""What trackers are told, and that one that fails or hangs harms nobody."""

import csv
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from firmware_agent.common.errors import EnvironmentUnfit, PluginError
from host.config.plugins.kinds import TRACKER
from host.monitoring.report.load_run import load_run
from host.monitoring.run_listener import RunStart, show_round
from host.monitoring.trackers import tracker_listener
from host.monitoring.trackers.tracker import TrackedRun
from host.monitoring.trackers.tracker_listener import TrackerListener, load_trackers, round_metrics
from tests import ROOT

RUNS = ROOT / "tests" / "data" / "run-0.1.0"


class Remembering:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.run: TrackedRun | None = None
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.files: list[str] = []

    def begin(self, run: TrackedRun) -> None:
        self.run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self, files: list[Path]) -> None:
        self.files = [path.name for path in files]


class Failing(Remembering):
    def log(self, values: Mapping[str, float], step: int) -> None:
        raise ConnectionError("the server is down")


class Hanging(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.free.wait()


def play(tracker: Any, name: str = "sync") -> TrackerListener:
    """The listener of a tracker that was shown a whole run."""
    run = load_run(RUNS / name, trusted=True)
    listener = TrackerListener("mine", lambda: tracker, "wide", {"rounds": 2, "sync": {"precision": "fp16"}})
    listener.begin(RunStart("modelled", str(RUNS / name)))
    for record in run.rounds:
        show_round([listener], record)
    listener.close()
    return listener


@pytest.mark.parametrize("name", ["federated", "sync"])
def test_a_tracker_is_told_settings_metrics_and_files(name: str) -> None:
    tracker = Remembering()
    play(tracker, name)
    rounds = load_run(RUNS / name, trusted=True).rounds
    assert tracker.run is not None
    assert (tracker.run.name, tracker.run.parameters) == ("wide", {"rounds": "2", "sync.precision": "fp16"})
    assert tracker.run.tags["clock"] == "modelled"
    assert tracker.run.tags["torch"]
    of_rounds = [(step, values) for step, values in tracker.logged if "test/accuracy" in values]
    assert [(step, values["test/accuracy"]) for step, values in of_rounds] == [(r.round, r.accuracy) for r in rounds]
    steps = [step for step, values in tracker.logged if "step/loss" in values]
    assert steps == [step.step for record in rounds for step in record.steps]
    device = rounds[0].devices[0].device
    assert f"drives/{device}/device_seconds" in of_rounds[0][1]
    assert "summary.json" in tracker.files


def test_joules_of_all_are_those_of_drives_and_host() -> None:
    for record in load_run(RUNS / "federated", trusted=True).rounds:
        values = round_metrics(record)
        drives = sum(values[f"drives/{part.device}/joules"] for part in record.devices)
        assert values["energy/joules"] >= drives > 0
        assert values["energy/joules_per_record"] * record.samples == pytest.approx(values["energy/joules"])


def test_a_tracker_that_fails_is_given_up_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Failing()
    play(tracker)
    assert tracker.files == []
    told = capsys.readouterr().err
    assert told.count("tracker mine failed: ConnectionError('the server is down')") == 1
    assert "the run goes on without it" in told


def test_a_tracker_that_hangs_is_given_up(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_listener, "_MOST_WAITING", 3)
    monkeypatch.setattr(tracker_listener, "_FINISH_SECONDS", 0.01)
    tracker = Hanging()
    listener = play(tracker)
    tracker.free.set()
    listener._thread.join()
    assert "tracker mine is 3 calls behind" in capsys.readouterr().err


def test_past_rounds_of_a_resumed_run_are_not_told_again() -> None:
    tracker = Remembering()
    listener = TrackerListener("mine", lambda: tracker, "wide", {})
    for record in load_run(RUNS / "sync", trusted=True).rounds:
        show_round([listener], record)
    listener.close()
    assert tracker.logged == []


def test_trackers_of_ones_own_are_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Mine:\n    def begin(self, run): ...\n    def log(self, values, step): ...\n")
    with pytest.raises(PluginError, match="Mine is no track, finish is missing"):
        load_trackers([f"{path}:Mine"], "wide", {})
    path.write_text(path.read_text() + "    def finish(self, files): ...\n")
    (listener,) = load_trackers([f"{path}:Mine"], "wide", {})
    listener.close()


def test_a_package_that_a_tracker_needs_is_named_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRACKER.load("mlflow"), "packages", ("no_such_package",))
    with pytest.raises(EnvironmentUnfit, match=r"mlflow needs no_such_package; pip install 'csd-emu\[mlflow\]'"):
        load_trackers(["mlflow"], "wide", {})


def copied(folder: Path, name: str) -> Path:
    """A run directory of ours."""
    made = folder / "a-run"
    made.mkdir()
    for path in (RUNS / name).iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    return made


def track(kind: str, directory: Path) -> None:
    """Show a whole run to one of the built-in trackers."""
    (listener,) = load_trackers([kind], "wide", {"rounds": 2})
    listener.begin(RunStart("modelled", str(directory)))
    for record in load_run(directory).rounds:
        show_round([listener], record)
    listener.close()
    assert not listener._failed


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_are_in_the_run_directory(kind: str, tmp_path: Path) -> None:
    directory = copied(tmp_path, "sync")
    track(kind, directory)
    rounds = load_run(directory).rounds
    path = directory / "tables" / f"rounds.{kind}"
    if kind == "csv":
        with open(path, encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    assert [float(row["accuracy"]) for row in rows] == [record.accuracy for record in rounds]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = copied(tmp_path, "federated")
    track("tensorboard", directory)
    read = EventAccumulator(str(directory / "tensorboard"))
    read.Reload()
    found = {event.step: event.value for event in read.Scalars("test/accuracy")}
    assert found == {r.round: pytest.approx(r.accuracy) for r in load_run(directory).rounds}
    (text,) = read.Tensors("run/text_summary")
    assert b"\n| rounds | 2 |" in text.tensor_proto.string_val[0]

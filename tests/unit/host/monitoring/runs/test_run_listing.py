"""Runs of a folder, and which of them a name means."""

import csv
import os
import shutil
from pathlib import Path

import pytest

from csd_emu.util.file_locks import locked
from firmware_agent.common.errors import ConfigurationError, EnvironmentUnfit
from host.monitoring.report.load_run import load_run
from host.monitoring.runs.run_listing import find_runs, list_runs, remove_runs
from host.monitoring.runs.run_tables import write_tables
from tests import ROOT

RUNS = ROOT / "tests" / "data" / "run-0.1.0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of 0.1.0, one of now, one that was stopped, one that cannot be read, and what is no run."""
    made = tmp_path / "runs"
    for name in ("20260101-120000-lab", "20260102-120000-wide", "20260102-120000-wide-2", "20260103-120000-lab"):
        shutil.copytree(RUNS / "federated", made / name)
    for name in ("20260102-120000-wide", "20260102-120000-wide-2"):
        with open(made / name / "job.yaml", "a", encoding="utf-8") as file:
            file.write("name: wide\n")
    (made / "20260102-120000-wide-2" / "summary.json").unlink()
    (made / "20260103-120000-lab" / "summary.json").write_text("{")
    (made / "notes").mkdir()
    return made


def test_runs_are_listed_with_how_they_ended(folder: Path) -> None:
    rows = list_runs(folder).runs
    assert [(row.name, row.state, row.began) for row in rows] == [
        ("lab", "finished", "2026-01-01 12:00:00"),
        ("wide", "finished", "2026-01-02 12:00:00"),
        ("wide", "stopped", "2026-01-02 12:00:00"),
        ("lab", "unreadable", "2026-01-03 12:00:00"),
    ]
    summary = load_run(RUNS / "federated", trusted=True).summary
    assert summary is not None
    assert (rows[0].accuracy, rows[0].rounds, rows[0].clock) == (summary.accuracy, summary.rounds, summary.clock)
    assert rows[2].accuracy is None
    assert rows[2].rounds == summary.rounds


def test_a_run_whose_directory_is_locked_is_running(folder: Path) -> None:
    path = folder / "20260102-120000-wide-2"
    with locked(path):
        assert [row.state for row in list_runs(folder).runs] == ["finished", "finished", "running", "unreadable"]
        with pytest.raises(EnvironmentUnfit, match="a run goes on there"):
            remove_runs([path])
    remove_runs([path])
    assert not path.exists()


def test_a_run_is_found_by_path_directory_and_name(folder: Path) -> None:
    one = folder / "20260101-120000-lab"
    assert find_runs(str(one), folder) == find_runs(one.name, folder) == [one]
    assert [path.name for path in find_runs("wide", folder)] == ["20260102-120000-wide", "20260102-120000-wide-2"]
    assert len(find_runs("lab", folder)) == 2
    with pytest.raises(ConfigurationError, match="no run of .* is called so; did you mean 'wide'"):
        find_runs("wid", folder)


def test_a_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "none").runs == []
    with pytest.raises(ConfigurationError, match="its runs: none"):
        find_runs("wide", tmp_path / "none")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove anything")
def test_what_cannot_be_removed_is_said(folder: Path) -> None:
    folder.chmod(0o500)
    with pytest.raises(EnvironmentUnfit, match="cannot be removed"):
        remove_runs([folder / "20260101-120000-lab"])


@pytest.mark.parametrize("name", ["federated", "sync"])
def test_tables_have_a_row_a_round_a_device_and_a_step(name: str, tmp_path: Path) -> None:
    run = load_run(RUNS / name, trusted=True)
    written = {path.stem: path for path in write_tables([run], tmp_path, "csv")}
    assert set(written) == {"rounds", "devices"} | ({"steps"} if name == "sync" else set())
    for table, count in (
        ("rounds", len(run.rounds)),
        ("devices", sum(len(record.devices) for record in run.rounds)),
        ("steps", sum(len(record.steps) for record in run.rounds)),
    ):
        if table in written:
            with open(written[table], encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            assert len(rows) == count
            assert {row["run"] for row in rows} == {run.path.name}
    with open(written["rounds"], encoding="utf-8", newline="") as file:
        accuracies = [float(row["accuracy"]) for row in csv.DictReader(file)]
    assert accuracies == [record.accuracy for record in run.rounds]

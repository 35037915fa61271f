import errno
import json
import math
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from csd_emu.config.array_file import ArrayConfig
from csd_emu.util.config_files import load_config
from firmware_agent.common.errors import CheckpointError, ConfigurationError, EnvironmentUnfit
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.config.job_file import JobConfig
from host.core.records import EventKind, EventRecord, RoundRecord
from host.core.summary import summarise
from host.monitoring.run_directory import RunDirectory
from host.monitoring.run_trace import write_trace
from tests.support.records import device_round, round_record

SECONDS = PhaseSeconds(1.0, 2.0, 0.5, 0.25)
PART = device_round("csd-00", 10, SECONDS, stopwatch_seconds=SECONDS, flash_read_bytes=640)
ROUND = round_record([PART], lost=["csd-01"])
EVENT = EventRecord("csd-01", EventKind.LOST, "in round 1: gone", 4.5)
FACTS = {"model": "m", "target_accuracy": 0.95, "reached": False, "wall_seconds": 1.0, "run_directory": "r", "seed": 0}


def test_records_are_on_disk_at_once_and_come_back_as_they_were(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "lab") as directory:
        for record in (ROUND, EVENT):
            directory.append(record)
            lines = (directory.path / "records.jsonl").read_bytes().splitlines()
            kind = msgspec.json.decode(lines[-1], type=RoundRecord | EventRecord)
            assert kind == record
        assert not directory.closed
    assert directory.closed
    assert [json.loads(line)["kind"] for line in lines] == ["round", "event"]


def test_configurations_are_written_so_that_they_can_be_used_again(tmp_path: Path) -> None:
    array = ArrayConfig.model_validate({"name": "lab", "engine": "native", "devices": [{"profile": "newport"}]})
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}})
    with RunDirectory.create(tmp_path, "lab") as directory:
        directory.write_configuration(array, job, {"csd-00": {"torch": "2.9.1"}}, {"newport": {"cores": {"value": 4}}})
    versions = json.loads((directory.path / "versions.json").read_text())
    assert versions["devices"] == {"csd-00": {"torch": "2.9.1"}}
    assert versions["profiles"] == {"newport": {"cores": {"value": 4}}}
    assert {"torch", "numpy", "csd-emu", "python"} <= set(versions["host"])
    assert ArrayConfig.model_validate(yaml.safe_load((directory.path / "array.yaml").read_text())) == array
    assert JobConfig.model_validate(yaml.safe_load((directory.path / "job.yaml").read_text())) == job


def test_the_files_of_a_run_directory_can_be_given_to_another_run(tmp_path: Path) -> None:
    array = ArrayConfig.model_validate({"name": "lab", "engine": "native", "devices": [{"profile": "newport"}]})
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}})
    with RunDirectory.create(tmp_path, "lab") as directory:
        directory.write_configuration(array, job, {}, {})
    assert load_config(directory.path / "array.yaml", ArrayConfig) == array
    assert load_config(directory.path / "job.yaml", JobConfig) == job


def test_the_end_of_a_run(tmp_path: Path) -> None:
    summary = summarise([ROUND, ROUND], array="lab", engine="qemu", **FACTS)
    weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3, np.int64)}
    with RunDirectory.create(tmp_path, "lab") as directory:
        directory.finish(summary, weights)
    assert msgspec.json.decode((directory.path / "summary.json").read_bytes(), type=type(summary)) == summary
    for name, array in load_file(directory.path / "model.safetensors").items():
        np.testing.assert_array_equal(array, weights[name])


def test_a_summary_adds_up_its_rounds() -> None:
    other = device_round("csd-01", 30, PhaseSeconds(forward=6.25))
    last = msgspec.structs.replace(ROUND, round=2, accuracy=0.96, devices=[PART, other])
    summary = summarise([ROUND, last], array="lab", engine="qemu", **FACTS)
    assert summary.device_seconds == {"csd-00": 7.5, "csd-01": 6.25}
    assert (summary.samples, summary.rounds, summary.accuracy, summary.clock) == (50, 2, 0.96, "counted")
    assert summary.records_per_device_second == pytest.approx(50 / 13.75)


def test_two_runs_of_one_second_do_not_share_a_folder(tmp_path: Path) -> None:
    directories = [RunDirectory.create(tmp_path / "runs", "lab") for _ in range(3)]
    assert len({directory.path for directory in directories}) == 3
    for directory in directories:
        assert re.fullmatch(r"\d{8}-\d{6}-lab(-\d)?", directory.path.name)
        directory.__exit__(None, None, None)


def begun(runs: Path) -> RunDirectory:
    """A directory of a run with its configuration, two rounds and events."""
    array = ArrayConfig.model_validate({"name": "lab", "engine": "native", "devices": [{"profile": "newport"}]})
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}})
    directory = RunDirectory.create(runs, "lab")
    directory.write_configuration(array, job, {}, {})
    for record in (EVENT, ROUND, EVENT, msgspec.structs.replace(ROUND, round=2), EVENT):
        directory.append(record)
    return directory


def test_rewinding_drops_what_lies_behind_the_rounds_and_a_torn_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for torn in [b"", b'{"kind":"rou', b"\xff\xfe\n", b"{}\n"]:
        for rounds, lines in [(0, 0), (1, 2), (2, 4)]:
            with subtests.test(rounds=rounds, lines=lines, torn=torn):
                with begun(tmp_path) as directory:
                    path = directory.path
                records = path / "records.jsonl"
                before = records.read_bytes().splitlines()
                with open(records, "ab") as stream:
                    stream.write(torn)
                with RunDirectory.reopen(path) as directory:
                    assert directory.rewind(rounds) == rounds
                    assert [record.round for record in directory.read_rounds()] == list(range(1, rounds + 1))
                    assert records.read_bytes().splitlines() == before[:lines]
                    directory.append(EVENT)
                assert records.read_bytes().splitlines() == [*before[:lines], before[0]]


def test_records_that_do_not_hold_the_checkpoints_rounds_are_refused_and_stay(tmp_path: Path) -> None:
    with begun(tmp_path) as directory:
        path = directory.path
    content = (path / "records.jsonl").read_bytes()
    with RunDirectory.reopen(path) as directory, pytest.raises(CheckpointError, match="does not hold the 3 rounds"):
        directory.rewind(3)
    assert (path / "records.jsonl").read_bytes() == content


@pytest.mark.parametrize("machine_joules", [None, 2.5])
def test_rounds_whose_losses_are_no_numbers_are_rewound(tmp_path: Path, machine_joules: float | None) -> None:
    fields = {"test_loss": math.nan, "train_loss": math.inf, "machine_joules": machine_joules}
    part = msgspec.structs.replace(PART, loss=math.nan)
    with RunDirectory.create(tmp_path, "lab") as directory:
        for number in (1, 2):
            directory.append(msgspec.structs.replace(ROUND, round=number, devices=[part], **fields))
        assert directory.rewind(2) == 2
        first, second = directory.read_rounds()
    assert (first.round, second.round) == (1, 2)
    assert math.isnan(second.test_loss)
    assert math.isnan(second.train_loss)  # JSON has neither
    assert math.isnan(second.devices[0].loss)
    assert second.machine_joules == machine_joules


def test_a_run_that_goes_on_has_no_end(tmp_path: Path) -> None:
    summary = summarise([ROUND], array="lab", engine="qemu", **FACTS)
    ended = {"summary.json", "model.safetensors", "trace.json", "report.html"}
    with begun(tmp_path) as directory:
        (directory.path / "checkpoint.safetensors").write_bytes(b"all that is needed")
        before = {path.name for path in directory.path.iterdir()}
        directory.remove_end()  # there may be none
        assert {path.name for path in directory.path.iterdir()} == before
        write_trace(directory.path, [ROUND], "lab")
        directory.finish(summary, {"w": np.zeros(2)})
        (directory.path / "report.html").write_text("it has ended")
        assert {path.name for path in directory.path.iterdir()} == before | ended
        directory.remove_end()
        assert {path.name for path in directory.path.iterdir()} == before
        assert directory.read_summary() is None


def test_the_only_weights_are_not_removed(tmp_path: Path) -> None:
    with begun(tmp_path) as directory:
        directory.finish(summarise([ROUND], array="lab", engine="qemu", **FACTS), {"w": np.zeros(2)})
        directory.remove_end()
        assert directory.read_summary() is None
        assert (directory.path / "model.safetensors").exists()


def write_configuration(directory: RunDirectory) -> None:
    array = ArrayConfig.model_validate({"name": "lab", "engine": "native", "devices": [{"profile": "newport"}]})
    job = JobConfig.model_validate({"model": "digits_cnn", "data": {"source": "digits"}})
    directory.write_configuration(array, job, {}, {})


def write_end(directory: RunDirectory) -> None:
    directory.finish(summarise([ROUND], array="lab", engine="qemu", **FACTS), {"w": np.zeros(2)})


@pytest.mark.parametrize(
    ("write", "name", "remedy"),
    [
        (write_end, "model.safetensors", "go on with csd-emu run --resume"),
        (
            lambda directory: write_trace(directory.path, [ROUND], "lab"),
            "trace.json",
            "go on with csd-emu run --resume",
        ),
        (write_configuration, "versions.json", "start the run again"),
        (lambda directory: directory.write_user_file("net.py", "x = 1"), "net.py", "start the run again"),
    ],
)
def test_a_full_disk_is_one_clear_error_and_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[RunDirectory], object], name: str, remedy: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunDirectory.create(tmp_path, "lab") as directory:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentUnfit, match=rf"{name}: cannot be written \(No space left.*{remedy}"):
            write(directory)
        assert [path.name for path in directory.path.iterdir()] == ["records.jsonl"]


def test_reopening_removes_what_a_killed_process_was_writing(tmp_path: Path) -> None:
    with begun(tmp_path) as directory:
        path = directory.path
    (path / "checkpoint.safetensors.partial").write_bytes(b"half")
    with RunDirectory.reopen(path):
        assert not (path / "checkpoint.safetensors.partial").exists()


def test_two_hosts_on_one_run_directory_are_refused(tmp_path: Path) -> None:
    with begun(tmp_path) as directory:
        with pytest.raises(EnvironmentUnfit, match="another csd-emu process works on this run"):
            RunDirectory.reopen(directory.path)
        directory.append(EVENT)
    RunDirectory.reopen(directory.path).__exit__(None, None, None)


def test_a_folder_without_a_configuration_is_no_run_directory(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match="is no run directory"):
            RunDirectory.reopen(path)
    with begun(tmp_path / "runs") as directory:
        (directory.path / "job.yaml").unlink()
    with pytest.raises(ConfigurationError, match="start the run again if it ended before"):
        RunDirectory.reopen(directory.path)


def test_records_that_cannot_be_written_are_one_error_however_often_it_is_tried(tmp_path: Path) -> None:
    limit, before = 1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)
    with begun(tmp_path) as directory:
        with open(directory.path / "records.jsonl", "ab") as stream:
            stream.truncate(limit - 10)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            for _ in range(2):
                with pytest.raises(EnvironmentUnfit, match=r"records\.jsonl: cannot be written .*--resume"):
                    directory.append(EVENT)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert directory.closed


def test_a_place_where_nothing_can_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnfit, match=r"no run directory can be made.*--runs"):
        RunDirectory.create(tmp_path / "file", "lab")

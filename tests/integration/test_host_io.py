"""Training on native drives that serve their host meanwhile: slower, the same each time, and resumed."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.commands import Done, Workshop

Command = Callable[..., Done]
JOB: dict[str, Any] = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync", "sync": {"round_steps": 4}}
LOAD = {"iops": 30000.0, "read_share": 0.5, "devices": ["csd-00"], "begin": {"step": 2}}
HOST_IO: dict[str, Any] = {"policy": "fair", "loads": [LOAD], "shard_writes": True, "checkpoint_writes": True}


def train(workshop: Workshop, csd_emu: Command, job: dict[str, Any], *more: Any) -> list[dict[str, Any]]:
    """Return the rounds of a new run, or of one that goes on, without what wall clocks saw."""
    arguments = more or (workshop.write("job.yaml", job), "--array", workshop.array, "--runs", workshop.runs)
    done = csd_emu("run", *arguments, "--json")
    assert done.code == 0, done.err
    directory = max(workshop.runs.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    rounds = [record for record in workshop.records(directory) if record["kind"] == "round"]
    return [{key: each[key] for key in ("array_seconds", "start_seconds", "devices", "accuracy")} for each in rounds]


def unclocked(rounds: list[dict[str, Any]]) -> list[Any]:
    kept = ("device", "read_seconds", "device_seconds", "service", "energy_joules")
    return [
        (each["array_seconds"], each["accuracy"], [{key: part[key] for key in kept} for part in each["devices"]])
        for each in rounds
    ]


def test_a_host_slows_training_down_the_same_each_time_and_a_resumed_run_too(
    workshop: Workshop, csd_emu: Command
) -> None:
    plain = train(workshop, csd_emu, JOB | {"rounds": 2})
    loaded = train(workshop, csd_emu, JOB | {"rounds": 2, "host_io": HOST_IO})
    assert sum(each["array_seconds"] for each in loaded) > sum(each["array_seconds"] for each in plain)
    assert all(part["service"] is None for each in plain for part in each["devices"])
    busy, idle = loaded[1]["devices"]
    assert busy["service"]["reads"] > 100
    assert busy["service"]["p99_seconds"] > busy["service"]["p50_seconds"] > 0
    assert busy["service"]["training_share"] < 1
    assert (idle["service"]["reads"], idle["service"]["writes"]) == (0, 0)
    train(workshop, csd_emu, JOB | {"rounds": 1, "host_io": HOST_IO})
    directory = max(workshop.runs.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    job = directory / "job.yaml"
    job.write_text(job.read_text().replace("rounds: 1\n", "rounds: 2\n"))
    assert unclocked(train(workshop, csd_emu, {}, "--resume", directory)) == unclocked(loaded)


def test_a_plan_counts_what_the_host_asks(workshop: Workshop, csd_emu: Command) -> None:
    load = {"iops": 12000.0, "block": "128 KiB", "devices": ["csd-00"]}
    job, array = JOB | {"planner": {"prefer": "time"}}, {"name": "lab", "engine": "native", "core_model": "cycles"}
    lab, found = workshop.write("lab.yaml", array | {"devices": [{"profile": "newport", "count": 2}]}), []
    for more in ({}, {"host_io": {"loads": [load]}}):
        written = workshop.write("job.yaml", job | {"tuner": "none", "batch_size": 32} | more)
        done = csd_emu("plan", written, "--array", lab, "--from-tables", "--json")
        assert done.code == 0, done.err
        found.append(done.json("plan")["devices"])
    plain, loaded = found
    assert not any("host_io" in note for note in plain["notes"])
    assert any("newport beside load 1 is csd-00" in note for note in loaded["notes"])
    assert loaded["kinds"] == {"newport": ["csd-01"], "newport beside load 1": ["csd-00"]}
    assert loaded["chosen"]["step_seconds"] > 1.01 * plain["chosen"]["step_seconds"]


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"iops": 1e8}, "lower the rate"),
        ({"iops": 5.0, "devices": ["csd-07"]}, "the array has no such drive"),
        ({"trace": "my.csv"}, "line 2: the time goes back"),
    ],
)
def test_what_no_drive_can_serve_starts_nothing(
    workshop: Workshop, csd_emu: Command, load: dict[str, Any], message: str
) -> None:
    workshop.write("my.csv", "200,h,0,Read,0,4096,0\n100,h,0,Read,0,4096,0\n")
    job = workshop.write("job.yaml", JOB | {"host_io": {"loads": [load]}})
    done = csd_emu("run", job, "--array", workshop.array, "--runs", workshop.runs)
    assert done.code == 2
    assert "host_io.loads[0]" in done.err
    assert message in " ".join(done.err.split())
    assert not workshop.runs.exists()

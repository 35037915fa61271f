"""Synchronous runs on the native engine: drives of different speed and the host train in step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Done, Workshop, meanwhile, temporary_workshop, wait_until

Command = Callable[..., Done]
ARRAY: dict[str, Any] = {
    "name": "lab",
    "engine": "native",
    "host": {"trains": True},
    "devices": [{"profile": "newport", "count": 2}, {"profile": "generic-a53", "count": 1}],
}
NODES = ["csd-00", "csd-01", "csd-02", "host"]
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits", "private": 0.02},
    "mode": "sync",
    "tuner": "hypertune",
    "rounds": 3,
    "learning_rate": 0.1,
    "sync": {"tuning": {"slow_batch": 2}},
    "target": {"accuracy": 1.0},
}


def arguments(workshop: Workshop, array: dict[str, Any] = ARRAY, **job: Any) -> list[Any]:
    files = workshop.write("array.yaml", array), workshop.write("job.yaml", JOB | job)
    return ["run", files[1], "--array", files[0], "--runs", workshop.runs]


def weights(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def retunes(workshop: Workshop) -> list[dict[str, Any]]:
    return [retune for record in workshop.rounds() for retune in record["retunes"]]


DISTURBED: dict[str, Any] = {
    "disturb": [{"device": "csd-01", "at_step": 5, "weight": 100, "steps": 12}],
    "rounds": 6,
    "checkpoint": {"every": 2},
}


@pytest.fixture(scope="module")
def whole() -> Iterator[Workshop]:
    """The folder of a disturbed run that nobody interrupted."""
    with temporary_workshop(Workshop) as workshop:
        done = workshop.run_here(*arguments(workshop, **DISTURBED), "--json")
        assert done.code == 1, done.err  # the target is out of reach
        assert done.json("run")["run_directory"] == str(workshop.run_directory())
        workshop.assert_clean()
        yield workshop


def test_unequal_drives_and_the_host_train_in_step_and_a_slowed_one_is_retuned_both_ways(whole: Workshop) -> None:
    summary = json.loads((whole.run_directory() / "summary.json").read_bytes())
    rounds = whole.rounds()
    assert [[part["device"] for part in record["devices"]] for record in rounds] == [NODES] * 6
    assert summary["clock"] == "modelled"
    assert summary["accuracy"] > 0.3
    # Every record of the digits once per epoch, whatever batches do.
    assert [sum(part["samples"] for part in record["devices"]) for record in rounds] == [1437] * 6
    steps = [step for record in rounds for step in record["steps"]]
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    for step in steps:
        assert sum(part["weight"] for part in step["devices"]) == pytest.approx(1.0, rel=1e-12)
    down, up = (retune for retune in retunes(whole) if retune["before"] != retune["after"])
    assert down["after"]["csd-01"] < down["before"]["csd-01"]
    assert 8 <= down["step"] <= 10
    assert up["after"] == down["before"]
    assert 20 <= up["step"] <= 22
    assert [step["step"] for step in steps if step["disturbed"]] == list(range(5, 17))
    host = rounds[0]["devices"][-1]
    assert host["sent_bytes"] == 0
    assert host["received_bytes"] == host["flash_read_bytes"] == 72 * host["samples"]


@pytest.mark.long
def test_the_same_job_repeats_to_the_bit_and_resumes_to_it(
    whole: Workshop, workshop: Workshop, csd_emu: Command
) -> None:
    process = workshop.start(*arguments(workshop, **DISTURBED))
    wait_until(lambda: len(workshop.rounds()) >= 3)
    process.kill()
    process.communicate()
    directory = workshop.run_directory()
    done = csd_emu("run", "--resume", directory)
    assert done.code == 1, done.err
    assert weights(directory) == weights(whole.run_directory())
    workshop.assert_clean()


@pytest.mark.long
def test_a_drive_that_is_killed_costs_a_step_and_the_run_goes_on(workshop: Workshop, csd_emu: Command) -> None:
    def kill() -> None:
        wait_until(lambda: len(workshop.rounds()) >= 1)
        workshop.kill_agent("csd-01")

    sync = {"tuning": {"slow_batch": 16}, "round_steps": 15}
    with meanwhile(kill):
        done = csd_emu(*arguments(workshop, tuner="stannis", rounds=8, sync=sync))
    assert done.code == 1, done.err
    rounds = workshop.rounds()
    assert len(rounds) == 8
    assert "csd-01" not in [part["device"] for part in rounds[-1]["devices"]]
    assert [retune["after"]["csd-01"] for retune in retunes(workshop)] == [0]
    lost = [step for record in rounds for step in record["steps"] if step["lost"]]
    assert all(step["lost"] == ["csd-01"] for step in lost)
    workshop.assert_clean()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["device", "synchronised", "frozen"])
def test_models_with_batch_norm_train_in_every_mode(workshop: Workshop, csd_emu: Command, mode: str) -> None:
    model = """
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 10)
    )
"""
    workshop.write("net.py", model)
    sync = {"batch_norm": mode, "optimiser": {"name": "AdamW"}, "clip_norm": 5.0}
    wanted = arguments(
        workshop,
        ARRAY | {"clock": "wall"},
        **{
            "model": "net.py:build",
            "tuner": "none",
            "batch_size": 24,
            "learning_rate": 0.01,
            "sync": sync,
            "rounds": 4,
        },
    )
    done = csd_emu(*wanted, "--json")
    assert done.code == 1, done.err
    assert done.json("run")["accuracy"] > 0.8
    workshop.assert_clean()


@pytest.mark.parametrize(
    ("array", "job", "message"),
    [
        ({}, {"mode": "federated"}, "tuner is for mode: sync, this job is mode: federated"),
        ({}, {"straggler": {"deadline": "1 s"}}, "straggler is for mode: federated, this job is mode: sync"),
        ({}, {"disturb": [{"device": "x-1", "at_step": 1, "weight": 1, "steps": 1}]}, "'x-1' is not in the array"),
        ({"clock": "wall"}, {}, "tuner: hypertune needs to know how fast the drives are"),
        ({}, {"sync": {"optimiser": {"name": "Adamm"}}}, "did you mean 'Adam'"),
        ({}, {"sync": {"optimiser": {"name": "LBFGS"}}}, "LBFGS cannot be used"),
        ({}, {"sync": {"straggler_factor": 1.0}}, "sync.straggler_factor"),
        ({}, {"data": {"source": "digits", "private": 1.0}}, "the host trains on public records"),
        ({}, {"sync": {"batch_norm": "synchronised", "micro_batch": 4}}, "needs a device's whole batch"),
        ({}, {"sync": {"tuning": {"slow_batch": 60000}}}, "60000"),
        (
            {"clock": "wall"},
            {"tuner": "none", "disturb": [{"device": "csd-00", "at_step": 1, "weight": 1, "steps": 1}]},
            "competing work has no weight",
        ),
    ],
)
def test_what_cannot_be_is_one_clear_error_before_anything_starts(
    workshop: Workshop, csd_emu: Command, array: dict[str, Any], job: dict[str, Any], message: str
) -> None:
    done = csd_emu(*arguments(workshop, ARRAY | array, **job))
    assert done.code == 2, done.out
    assert message in done.err
    assert not workshop.runs.exists()
    workshop.assert_clean()


def test_federated_jobs_leave_the_host_out(workshop: Workshop, csd_emu: Command) -> None:
    job = {"model": "digits_cnn", "data": {"source": "digits"}}
    done = csd_emu("run", workshop.write("job.yaml", job), "--array", workshop.write("array.yaml", ARRAY))
    assert done.code == 2
    assert "host.trains" in done.err
    workshop.assert_clean()


@pytest.mark.long
def test_the_tuner_can_be_named_on_the_command_line(workshop: Workshop, csd_emu: Command) -> None:
    done = csd_emu(*arguments(workshop), "--tuner", "none", "--json")
    assert done.code == 1, done.err
    assert {part["batch_size"] for part in workshop.rounds()[0]["steps"][0]["devices"]} == {32}
    batches = []
    for tuner in ("stannis", "hypertune"):
        shutil.rmtree(workshop.runs)
        done = csd_emu(*arguments(workshop, tuner="none", rounds=1), "--tuner", tuner)
        assert done.code == 1, done.err
        batches.append([part["batch_size"] for part in workshop.rounds()[0]["steps"][0]["devices"]])
    assert batches[0] == batches[1]  # they plan alike, and nothing was disturbed
    assert len(set(batches[0])) == 3  # of three classes


def test_a_tuner_for_a_federated_job_is_refused(workshop: Workshop, csd_emu: Command) -> None:
    job = workshop.write("job.yaml", {"model": "digits_cnn", "data": {"source": "digits"}})
    array = workshop.write("array.yaml", ARRAY | {"host": {}})
    done = csd_emu("run", job, "--array", array, "--tuner", "stannis")
    assert (done.code, done.out) == (2, "")
    assert "tuner is for mode: sync, this job is mode: federated" in done.err
    done = csd_emu("run", job, "--array", array, "--tuner", "best")
    assert done.code == 2
    assert "best" in done.err

"""An array that stays up between commands."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.commands import ARRAY, Done, Workshop, wait_until

Command = Callable[..., Done]
# The agents of `up` outlive the engine that started them on purpose; so does libvirt's daemon.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def test_up_status_run_twice_and_down(workshop: Workshop, csd_emu: Command) -> None:
    up = csd_emu("up", workshop.array, "--job", workshop.job, "--json").json("up")
    assert (up["array"], up["engine"], up["state"]) == ("lab", "native", "up")
    assert [(device["name"], device["state"]) for device in up["devices"]] == [
        ("csd-00", "running"),
        ("csd-01", "running"),
    ]
    assert sum(device["samples"] for device in up["devices"]) == 1437
    processes = {process.pid for process in workshop.agents()}
    assert len(processes) == 2

    assert csd_emu("status", "--json").json("status") == {"arrays": [up]}
    shown = csd_emu("status")
    assert "csd-01" in shown.out
    assert "running" in shown.out
    assert_refused(csd_emu("up", workshop.array), "array 'lab' is up already; csd-emu down lab ends it")

    weights = []
    for rounds in (2, 2):
        done = csd_emu(*workshop.job_arguments(rounds=rounds, target=None), "--json")
        assert done.code == 0, done.err
        summary = done.json("run")
        assert summary["target_accuracy"] is None
        weights.append((workshop.runs / summary["run_directory"] / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    assert {process.pid for process in workshop.agents()} == processes

    for change, what in (
        ({"seed": 1}, "seed"),
        ({"data": {"source": "digits", "partition": {"dirichlet": 5.0}}}, "data"),
    ):
        assert_refused(csd_emu(*workshop.job_arguments(**change)), f"is up with another {what}")
    workshop.write("array.yaml", ARRAY | {"memory": "3 GiB"})
    assert_refused(csd_emu(*workshop.job_arguments()), "csd-emu down lab, then run again")
    assert {process.pid for process in workshop.agents()} == processes

    killed = workshop.agent("csd-00")
    killed.kill()
    wait_until(lambda: len(workshop.agents()) == 1)
    (damaged,) = csd_emu("status", "--json").json("status")["arrays"]
    assert damaged["state"] == "damaged"
    assert [device["state"] for device in damaged["devices"]] == ["gone", "running"]

    assert csd_emu("down", "lab", "--json").json("down")["ended"] == {"lab": ["csd-01"]}
    assert csd_emu("status", "--json").json("status") == {"arrays": []}
    assert_refused(csd_emu("down", "lab"), "array 'lab' is not up")
    workshop.assert_clean()


def test_sweep_needs_no_state_file_and_touches_its_own_array_alone(workshop: Workshop, csd_emu: Command) -> None:
    other = workshop.write("other.yaml", ARRAY | {"name": "other", "devices": [{"profile": "newport"}]})
    one = workshop.write("one.yaml", ARRAY | {"devices": [{"profile": "newport"}]})
    for array in (one, other):
        assert csd_emu("up", array).code == 0
    (workshop.home / "state" / "arrays" / "lab" / "array.json").unlink()
    assert csd_emu("clean", "lab", "--json").json("clean")["ended"] == {"lab": ["csd-00"]}
    assert [array["array"] for array in csd_emu("status", "--json").json("status")["arrays"]] == ["other"]
    assert csd_emu("clean", "--json").json("clean")["ended"] == {"other": ["csd-00"]}
    assert workshop.agents() == []
    assert workshop.arrays() == []


@pytest.mark.long
def test_what_a_killed_run_left_can_be_ended_or_is_swept_by_up(workshop: Workshop, csd_emu: Command) -> None:
    workshop.write("array.yaml", ARRAY | {"devices": [{"profile": "newport"}]})
    process = workshop.start(*workshop.job_arguments(rounds=500, target={"accuracy": 1.0}))
    wait_until(lambda: workshop.agents() and workshop.runs.exists())
    process.kill()
    process.communicate()
    left = {agent.pid for agent in workshop.agents()}
    assert len(left) == 1
    assert csd_emu("up", workshop.array).code == 0  # not "is up already": nobody kept it
    assert len(workshop.agents()) == 1
    assert not {agent.pid for agent in workshop.agents()} & left
    assert csd_emu("down", "lab", "--json").json("down")["ended"] == {"lab": ["csd-00"]}
    workshop.assert_clean()


def test_validate(workshop: Workshop, csd_emu: Command) -> None:
    done = csd_emu("validate", workshop.job, "--array", workshop.array, "--json")
    assert done.code == 0
    report: dict[str, Any] = done.json("validate")
    assert report["devices"] == ["csd-00", "csd-01"]
    assert (report["array"]["name"], report["job"]["model"], report["domains"]) == ("lab", "digits_cnn", {})
    assert csd_emu("validate", workshop.array, "--json").json("validate")["job"] is None
    assert "lab: 2 drives (native), valid" in csd_emu("validate", workshop.array).out
    sampled = workshop.write("sampled.yaml", ARRAY | {"engine": "qemu"}), "--clock", "sampled"
    assert "(native; virtual machines that count steps: 1), valid" in csd_emu("validate", *sampled).out
    assert csd_emu("validate", *sampled, "--json").json("validate")["engine"] == "native"
    workshop.assert_clean()
    assert not workshop.home.exists()


def assert_refused(done: Done, message: str) -> None:
    assert done.code == 2
    assert message in done.err

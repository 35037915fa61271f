"""Runs on the clock ``sampled`` in which a native process counts in place of a virtual machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import host.training.sampling.sampler_machine as sampler_machine
from tests import ROOT
from tests.support.commands import Done, Workshop, meanwhile, wait_until

Command = Callable[..., Done]
ARRAY: dict[str, Any] = {"name": "lab", "clock": "sampled", "devices": [{"profile": "newport", "count": 3}]}
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits", "partition": {"dirichlet": 0.5}},
    "rounds": 3,
    "epochs": 2,
    "learning_rate": 0.05,
    "momentum": 0.9,
}
SYNC: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits", "private": 0.5},
    "mode": "sync",
    "rounds": 2,
    "batch_size": 16,
    "learning_rate": 0.05,
    "sync": {"round_steps": 12},
}


@pytest.fixture
def counted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have native processes count; their clock is the wall's, which nothing here compares."""
    monkeypatch.setattr(sampler_machine, "QEMU", "native")


def run(workshop: Workshop, csd_emu: Command, array: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    files = workshop.write("job.yaml", job), workshop.write("array.yaml", array)
    done = csd_emu("run", files[0], "--array", files[1], "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    summary: dict[str, Any] = json.loads(done.out)
    assert array["clock"] in summary["clock"].split("+")
    assert summary["engine"] == "native"
    return summary


def weights(workshop: Workshop) -> bytes:
    return (workshop.run_directory() / "model.safetensors").read_bytes()


def events(workshop: Workshop) -> list[str]:
    lines = map(json.loads, (workshop.run_directory() / "records.jsonl").read_bytes().splitlines())
    return [line["detail"] for line in lines if line["kind"] == "event"]


NORMALISED = """
from torch import nn


def build():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )
"""
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "federated": ({}, JOB),
    "sync": ({}, SYNC),
    "several machines": ({"samplers": 2}, SYNC),
    "cut": ({}, SYNC | {"placement": "2", "rounds": 1}),
    "sums of all drives": (
        {},
        SYNC | {"model": "net.py:build", "rounds": 1, "sync": {"round_steps": 4, "batch_norm": "synchronised"}},
    ),
    "host": ({"host": {"trains": True}}, SYNC | {"rounds": 1}),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind not in ("federated", "cut"))) for kind in KINDS]
)
@pytest.mark.usefixtures("counted_here")
def test_weights_are_those_of_native_drives_and_seconds_those_of_counted_steps(
    kind: str, workshop: Workshop, csd_emu: Command
) -> None:
    changes, job = KINDS[kind]
    workshop.write("net.py", NORMALISED)
    run(workshop, csd_emu, ARRAY | changes, job)
    own, rounds = weights(workshop), workshop.rounds()
    assert rounds[0]["sampling"]["counted_steps"] > 0  # a later round may find all that it needs
    for record in rounds:
        told, parts = record["sampling"], [part for part in record["devices"] if part["device"] != "host"]
        assert told["steps"] == sum(part["steps"] for part in parts)
        assert told["error"] > 0
        assert told["not_counted"] == []
        assert told["strata"]
        assert {part["clock"] for part in parts} == {"sampled"}
        assert all(sum(part["device_seconds"].values()) > 0 for part in parts)
    workshop.assert_clean()

    workshop.runs.rename(workshop.folder / "before")
    array = {key: value for key, value in (ARRAY | changes).items() if key != "samplers"}
    clock = "wall" if "net.py" in job["model"] else "modelled"
    run(workshop, csd_emu, array | {"clock": clock, "engine": "native"}, job)
    assert weights(workshop) == own


@pytest.mark.usefixtures("counted_here")
def test_a_machine_that_dies_is_replaced_and_the_run_goes_on(workshop: Workshop) -> None:
    files = workshop.write("job.yaml", JOB | {"rounds": 25}), workshop.write("array.yaml", ARRAY)
    killed = threading.Event()

    def kill() -> None:
        wait_until(lambda: len(workshop.rounds()) >= 2)
        workshop.kill_agent("counter-00")
        killed.set()

    with meanwhile(kill):
        done = workshop.run_here("run", files[0], "--array", files[1], "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    assert killed.is_set()
    (told,) = [detail for detail in events(workshop) if "virtual machine" in detail]
    assert "another is started" in told
    assert [record["sampling"]["not_counted"] for record in workshop.rounds()] == [[]] * 25
    workshop.assert_clean()


@pytest.mark.long
@pytest.mark.usefixtures("counted_here")
def test_what_a_killed_run_leaves_ends_with_its_array(workshop: Workshop, csd_emu: Command) -> None:
    """The machine that counts is one of an array of its own."""
    files = workshop.write("job.yaml", JOB | {"rounds": 200}), workshop.write("array.yaml", ARRAY)
    code = (
        "import host.training.sampling.sampler_machine as machine; machine.QEMU = 'native'; "
        "from host.cli.main import main; main()"
    )
    command = [sys.executable, "-c", code, "run", files[0], "--array", files[1], "--runs", workshop.runs]
    run = subprocess.Popen(list(map(str, command)), env=workshop.environment, stdout=subprocess.DEVNULL, cwd=ROOT)
    wait_until(lambda: len(workshop.rounds()) >= 1)
    run.kill()
    run.wait()
    assert len(workshop.agents()) == 4
    told = {each["array"]: each for each in csd_emu("status", "--json").json("status")["arrays"]}
    assert {name: each["counts_for"] for name, each in told.items()} == {"lab": None, "lab-counter0": "lab"}
    assert "lab-counter0 (native): up, counts steps of lab" in csd_emu("status").out
    done = csd_emu("down", "lab")
    assert done.code == 0, done.err
    assert workshop.agents() == []
    assert workshop.arrays() == []


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_without_qemu_the_clock_that_is_left_is_named(
    workshop: Workshop, csd_emu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(workshop.folder))
    files = workshop.write("job.yaml", JOB), workshop.write("array.yaml", ARRAY)
    done = csd_emu("run", files[0], "--array", files[1], "--runs", workshop.runs)
    assert done.code == 2
    assert "clock: sampled counts steps on a virtual machine" in done.err
    assert "clock: modelled is what is left" in done.err
    assert workshop.agents() == []
    assert workshop.arrays() == []

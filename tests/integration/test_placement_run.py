"""Runs of models that are cut, on the native engine: drives compute the front, the host the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load

from host.app.reviewed_training import ReviewedTraining
from host.core.records import StepRecord
from host.training.split.split_review import CutInForce, CutReview, SplitReview
from tests.support.commands import Done, Workshop, wait_until

Command = Callable[..., Done]
EXAMPLE = Path(__file__).parents[2] / "examples" / "placement"
ARRAY: dict[str, Any] = {
    "name": "placed",
    "engine": "native",
    "host": {"trains": True},
    "link": {"bandwidth": "100 MB/s"},
    "devices": [{"profile": "newport", "count": 2}, {"profile": "generic-a53", "count": 1}],
}
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits", "private": 0.02},
    "mode": "sync",
    "tuner": "hypertune",
    "rounds": 6,
    "learning_rate": 0.1,
    "sync": {"tuning": {"slow_batch": 2}},
}


def arguments(workshop: Workshop, array: dict[str, Any] = ARRAY, **job: Any) -> list[Any]:
    files = workshop.write("array.yaml", array), workshop.write("job.yaml", JOB | job)
    return ["run", files[1], "--array", files[0], "--runs", workshop.runs]


def steps_of(workshop: Workshop) -> list[dict[str, Any]]:
    return [step for record in workshop.rounds() for step in record["steps"]]


@pytest.mark.long
def test_unequal_drives_and_the_host_train_with_a_cut_and_a_slowed_one_is_retuned(
    workshop: Workshop, csd_emu: Command
) -> None:
    disturb = [{"device": "csd-01", "at_step": 5, "weight": 100, "steps": 12}]
    done = csd_emu(*arguments(workshop, disturb=disturb), "--placement", "6", "--json")
    assert done.code == 0, done.err
    summary = done.json("run")
    steps = steps_of(workshop)
    for step in steps:
        placed = step["placement"]
        assert (placed["layer"], placed["layers"], placed["clock"]) == ("6", 2, "modelled")
        # 512 values and a label go up for each record of a drive, 512 gradients come down.
        remote = sum(part["batch_size"] for part in step["devices"] if part["device"] != "host")
        assert 0 <= placed["up_bytes"] - remote * (512 * 4 + 8) < 2000
        assert 0 <= placed["down_bytes"] - remote * 512 * 4 < 1000
        assert placed["tail_seconds"] > 0
    retunes = [retune for record in workshop.rounds() for retune in record["retunes"]]
    assert any("csd-01" in retune["reason"] for retune in retunes), retunes
    assert summary["accuracy"] > 0.3


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({}, ["--placement", "7"], "the model has no layer '7'; nearest: "),
        ({}, ["--placement", "0"], "'0' is the model's first layer: before it lie the records alone"),
        ({"mode": "federated", "sync": {}, "tuner": "none", "data": {"source": "digits"}}, ["--placement", "6"],
         "placement is for mode: sync"),
    ],
)  # fmt: skip
def test_a_cut_that_cannot_be_is_refused_and_nothing_starts(
    workshop: Workshop, csd_emu: Command, changes: dict[str, Any], options: list[str], reason: str
) -> None:
    done = csd_emu(*arguments(workshop, **changes), *options)
    assert done.code == 2
    assert reason in done.err
    assert not workshop.runs.exists() or not list(workshop.runs.iterdir())


# A watchdog for a hang: a busy machine takes minutes.
_SECONDS = 600.0
WALL: dict[str, Any] = {
    "name": "placed",
    "engine": "native",
    "clock": "wall",
    "devices": [{"profile": "newport", "count": 3}],
}
OVERLAPPED = {"schedule": "priority", "slice": "3 kB", "credit": "9 kB", "overlap": True}
# Draws and normalises on both sides of any cut; two values cross before `third`.
MODEL = """
import torch
from torch import nn

class build(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.third = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(512, 10)

    def forward(self, images):
        x = self.drop(torch.relu(self.norm(self.first(images))))
        y = nn.functional.dropout(torch.tanh(self.third(self.second(x))), 0.3, self.training)
        return self.last(self.drop((x + y).flatten(1)))
"""


def wall_files(workshop: Workshop, communication: Any, **job: Any) -> list[Any]:
    workshop.write("net.py", MODEL)
    fields = {
        **{"model": "net.py:build", "data": {"source": "digits", "private": 0.3}, "mode": "sync", "rounds": 1},
        **{"batch_size": 16, "learning_rate": 0.1, "momentum": 0.9, "sync": {"round_steps": 8}, "watchdog": "60 s"},
    }
    files = (
        workshop.write("array.yaml", WALL),
        workshop.write("job.yaml", fields | job | {"communication": communication}),
    )
    return ["run", files[1], "--array", files[0], "--runs", workshop.runs]


def wall_run(workshop: Workshop, communication: Any, *options: str, **job: Any) -> bytes:
    """Return the weights that a run ends with."""
    before = set(workshop.runs.iterdir()) if workshop.runs.exists() else set()
    done = workshop.run_here(*wall_files(workshop, communication, **job), *options, "--json")
    assert done.code == 0, done.err
    (directory,) = set(workshop.runs.iterdir()) - before
    assert not [record for record in workshop.records(directory) if record.get("what") in ("lost", "failed")]
    workshop.assert_clean()
    return (directory / "model.safetensors").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(
    ("layer", "sync"),
    [
        ("second", {}),
        pytest.param("third", {"micro_batch": 5}, marks=pytest.mark.long),
        pytest.param("norm", {"batch_norm": "synchronised", "clip_norm": 1.0}, marks=pytest.mark.long),
        pytest.param("last", {"batch_norm": "frozen"}, marks=pytest.mark.long),
    ],
)
def test_weights_with_a_cut_are_the_same_bit_for_bit_whether_slices_cross_while_drives_compute_or_not(
    workshop: Workshop, layer: str, sync: dict[str, Any]
) -> None:
    sync = {"round_steps": 8, "precision": "float64"} | sync
    got = wall_run(workshop, OVERLAPPED, "--placement", layer, sync=sync)
    assert got == wall_run(workshop, "fifo", "--placement", layer, sync=sync)
    whole = load(wall_run(workshop, "fifo", sync=sync))
    for name, array in load(got).items():
        np.testing.assert_allclose(array, whole[name], rtol=1e-10, atol=1e-10, err_msg=name)


def test_weights_are_those_of_the_whole_model_while_the_cut_changes_under_way(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps 1 and 2 as planned, then cut before `6`, then before `2`, then with nothing moved, in two rounds."""
    cuts = {2: "6", 4: "2", 6: None}

    def look(self: SplitReview, cut: CutInForce, steps: Sequence[StepRecord]) -> CutReview:
        layer = cuts[steps[-1].step]
        return CutReview(replace(cut, layer=layer), f"placement: auto: a test wants {layer}")

    monkeypatch.setattr(SplitReview, "look", look)
    monkeypatch.setattr(ReviewedTraining, "_is_due", lambda self, steps: steps[-1].step in cuts)
    job: dict[str, Any] = {
        **{"rounds": 2, "tuner": "none", "sync": {"round_steps": 5, "precision": "float64"}, "batch_size": 16},
        "disturb": [{"device": "csd-01", "at_step": 2, "steps": 4, "weight": 50}],
    }
    weights = {}
    for placement in ("none", "auto"):
        before = set(workshop.runs.iterdir()) if workshop.runs.exists() else set()
        done = workshop.run_here(*arguments(workshop, **job), "--placement", placement)
        assert done.code == 0, done.err
        (directory,) = set(workshop.runs.iterdir()) - before
        weights[placement] = load((directory / "model.safetensors").read_bytes())
    records = workshop.records(directory)
    steps = [step for record in records for step in record.get("steps", ())]
    assert [step["step"] for step in steps] == list(range(1, 11))
    assert [(step["placement"] or {}).get("layer") for step in steps[2:]] == [*["6"] * 2, *["2"] * 2, *[None] * 4]
    assert [bool(step["disturbed"]) for step in steps] == [False, *[True] * 4, *[False] * 5]
    notes = [record["detail"] for record in records if str(record.get("detail")).startswith("placement: ")]
    assert [note.rpartition(" ")[2] for note in notes[-3:]] == ["6", "2", "None"]
    # Competing work is told of once, and ends.
    slowed = [record["detail"] for record in records if "disturb, step" in str(record.get("detail"))]
    assert len(slowed) == 2
    for name, array in weights["auto"].items():
        np.testing.assert_allclose(array, weights["none"][name], rtol=1e-10, atol=1e-10, err_msg=name)
    workshop.assert_clean()


@pytest.mark.long
def test_a_run_with_a_cut_goes_on_when_a_drive_dies_while_steps_overlap(workshop: Workshop) -> None:
    process = workshop.start(*wall_files(workshop, OVERLAPPED, rounds=4), "--placement", "second")
    wait_until(lambda: len(workshop.rounds()) >= 1, _SECONDS)
    workshop.kill_agent("csd-01")
    _, err = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, err
    rounds = workshop.rounds()
    assert [len(record["steps"]) for record in rounds] == [8] * 4
    assert "csd-01" not in [part["device"] for part in rounds[-1]["devices"]]
    workshop.assert_clean()


def example(workshop: Workshop, job: str, array: Path = EXAMPLE / "array.yaml", *options: str) -> Done:
    files = EXAMPLE / job, "--array", array, "--runs", workshop.runs
    return workshop.run("run", *files, *options, "--json", seconds=300.0)


def test_the_example_moves_its_late_layers_and_learns(workshop: Workshop) -> None:
    done = example(workshop, "job.yaml", EXAMPLE / "array.yaml", "--engine", "native")
    assert done.code == 0, done.err
    assert {step["placement"]["layer"] for step in steps_of(workshop)} == {"6"}
    assert done.json("run")["accuracy"] >= 0.95
    workshop.assert_clean()


@pytest.mark.long
def test_a_model_too_large_for_its_drives_trains_with_layers_on_the_host(workshop: Workshop) -> None:
    """Native drives have the memory of their profile, so it is one of a gibibyte."""
    folder = workshop.home / "state" / "profiles"
    folder.mkdir(parents=True)
    profile = {"base": "newport", "dram": {"value": "1 GiB", "source": "assumed by a test"}}
    (folder / "tight.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    array = workshop.write(
        "tight-array.yaml", {"name": "tight", "engine": "native", "devices": [{"profile": "tight", "count": 2}]}
    )
    whole = example(workshop, "too-large.yaml", array, "--placement", "none")
    assert whole.code == 2
    assert "one record of alexnet at 3x224x224 needs 1.2 GB of memory" in whole.err
    assert "placement: auto" in whole.err
    assert not workshop.runs.exists()
    cut = example(workshop, "too-large.yaml", array)
    assert cut.code == 0, cut.err
    steps = steps_of(workshop)
    assert [(step["placement"]["layer"], len(step["devices"]), step["lost"]) for step in steps] == [("16", 2, [])] * 2
    # What the drives have in memory: 2.5 of 61.1 million parameters.
    assert all(step["placement"]["state_bytes"] > 0.95 * 4 * 61_100_840 for step in steps)
    assert all(math.isfinite(step["loss"]) for step in steps)

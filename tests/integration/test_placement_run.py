"""Runs of models that are cut, on the native engine: drives compute the front, the host the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.commands import Done, Workshop

Command = Callable[..., Done]
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


def test_unequal_drives_and_the_host_train_with_a_cut_and_a_slowed_one_is_retuned(workshop: Workshop) -> None:
    disturb = [{"device": "csd-01", "at_step": 5, "weight": 100, "steps": 12}]
    done = workshop.run(*arguments(workshop, disturb=disturb), "--placement", "6", "--json")
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
    workshop: Workshop, changes: dict[str, Any], options: list[str], reason: str
) -> None:
    done = workshop.run(*arguments(workshop, **changes), *options)
    assert done.code == 2
    assert reason in done.err
    assert not workshop.runs.exists() or not list(workshop.runs.iterdir())

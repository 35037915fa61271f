"""Simulated training takes as long as a run on native drives does on the clock `modelled`, step for step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_lab.bench.harness import request_run
from csd_lab.bench.joint_tuning.simulated_training import simulate_training
from tests.support.commands import Workshop

ARRAY: dict[str, Any] = {
    "name": "lab",
    "engine": "native",
    "clock": "modelled",
    "link": {"bandwidth": "20 MB/s"},
    "devices": [{"profile": "newport", "count": 2}, {"profile": "generic-a53", "name": "slow"}],
}
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits"},
    "mode": "sync",
    "batch_size": 16,
    "rounds": 2,
    "sync": {"round_steps": 5},
}


class Quiet:
    """Nothing happens."""

    def slowness(self, device: str, done: float, records: int) -> float:
        return 1.0

    def link_share(self, done: float) -> float:
        return 1.0

    def absent(self, done: float) -> Collection[str]:
        return ()

    def noise(self, step: int) -> float:
        return 1.0


@pytest.mark.parametrize(
    "job",
    [
        {"tuner": "hypertune"},
        {"communication": {"schedule": "priority"}},
        {"placement": "auto"},
        {"placement": "auto", "tuner": "stannis", "communication": {"schedule": "priority"}},
    ],
)
def test_each_step_takes_as_long(tmp_path: Any, job: dict[str, Any]) -> None:
    keys = JOB | job
    simulated = simulate_training(request_run(ArrayConfig.model_validate(ARRAY), keys), Quiet())
    workshop = Workshop(tmp_path)
    files = workshop.write("array.yaml", ARRAY), workshop.write("job.yaml", keys)
    done = workshop.run_here("run", files[1], "--array", files[0], "--runs", workshop.runs, "--json")
    assert done.code == 0, done.err
    steps = [step for record in workshop.rounds() for step in record["steps"]]
    assert [step.samples for step in simulated.steps] == [
        sum(part["batch_size"] for part in step["devices"]) for step in steps
    ]
    for ours, theirs in zip(simulated.steps, steps, strict=True):
        assert ours.array_seconds == pytest.approx(theirs["array_seconds"], rel=0.01)
    workshop.assert_clean()

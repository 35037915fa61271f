"""Which devices train, chosen on virtual machines of two profiles: what is measured is counted."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from tests.commands import ARRAY
from tests.machines import DAEMON_OUTLIVES
from tests.vm.conftest import NAME, VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]

UNEQUAL: dict[str, Any] = ARRAY | {
    "name": NAME,
    "engine": "qemu",
    "link": {"bandwidth": "100 MB/s"},
    "devices": [{"profile": "newport", "count": 2}, {"profile": "generic-a53"}],
}
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits"},
    "mode": "sync",
    "learning_rate": 0.1,
    "batch_size": 32,
    "rounds": 2,
    "sync": {"round_steps": 40},  # trials may cost a twentieth of the whole
}


def test_virtual_drives_are_chosen_by_counted_seconds_and_estimates_hold(workshop: VmWorkshop) -> None:
    files = workshop.write("array.yaml", UNEQUAL), workshop.write("job.yaml", JOB)
    arguments = ["plan", files[1], "--array", files[0], "--prefer", "time", "--steps", "3", "--apply"]
    done = workshop.run(*arguments, "--runs", workshop.runs, "--json", seconds=500)
    assert done.code == 0, done.err
    report = done.json("plan")
    plan = report["devices"]
    print(json.dumps({key: plan[key] for key in ("chosen", "trials", "reasons", "sure")}, indent=1))
    assert plan["clock"] == "counted"
    assert plan["trial_steps"] >= 3
    # A third drive of a third of the speed costs more than it brings, at equal batches.
    assert plan["chosen"]["name"] == "2 newport"
    assert report["summary"]["chosen"] == "2 newport"
    steps = [step for record in workshop.rounds() for step in record["steps"]]
    after = steps[plan["step"] :]
    assert all([part["device"] for part in step["devices"]] == ["csd-00", "csd-01"] for step in after)
    whole = [step["array_seconds"] for step in after if sum(part["batch_size"] for part in step["devices"]) == 64]
    assert statistics.median(whole) == pytest.approx(plan["chosen"]["step_seconds"], rel=0.05)
    workshop.assert_clean()

"""Which devices train, chosen on virtual machines of two profiles: what is measured is counted."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from csd_emu.util.paths import Paths
from csd_emu.util.progress import Silent
from csd_lab.bench.harness import Bench
from csd_lab.bench.planner.planner_vms import BATCH, measure
from tests.support.commands import ARRAY
from tests.support.machines import DAEMON_OUTLIVES
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


def test_choices_are_within_5_percent_of_the_best_of_all_that_were_run(template: None) -> None:
    """The bench's part with the link behind which the drives are worth something."""
    (world,) = measure(Bench("planner_vms", Paths.default(), Silent(), 0), ["100 MB/s"])
    costs = {tuple(each["configuration"]): each for each in world["costs"]}
    assert set(costs) == {(1, 0), (2, 0), (0, 1), (1, 1), (2, 1)}
    # Private records of a drive that takes no part are nobody's.
    assert costs[2, 1]["records"] > costs[2, 0]["records"] > costs[1, 0]["records"]
    assert [case["preference"] for case in world["cases"]] == ["time", "power", "energy", "edp"]
    for case in world["cases"]:
        ours = case["ours"]
        print(json.dumps({key: ours[key] for key in ("configuration", "regret", "seconds_error", "joules_error")}))
        assert ours["kept"]
        assert ours["regret"] <= 0.05
        assert abs(ours["seconds_error"]) <= 0.05
        assert abs(ours["joules_error"]) <= 0.05
        assert set(ours["batches"]) <= {0, BATCH}

"""A job on both clocks: what a few counted steps say of all, beside all of them counted."""

from __future__ import annotations

import pytest

from tests.support.commands import ARRAY
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import NAME, VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]


def test_a_job_is_run_on_both_clocks_and_compared(workshop: VmWorkshop) -> None:
    array = workshop.write("array.yaml", ARRAY | {"name": NAME, "engine": "qemu"})
    changes = {"data": {"source": "digits"}, "rounds": 3, "epochs": 1, "batch_size": 32, "target": None}
    job = workshop.job_arguments(**changes)[1]
    arguments = ["clocks", job, "--array", array, "--runs", workshop.runs, "--native", "--json"]
    done = workshop.run(*arguments, seconds=900)
    assert done.code == 0, done.err
    told = done.json("clocks")
    print(told["seconds"], told["sampling"], told["counted_wall_seconds"], told["sampled_wall_seconds"])
    assert [each["of"] for each in told["seconds"]] == ["csd-00", "csd-01", "array"]
    for each in told["seconds"]:
        assert each["sampled_seconds"] == pytest.approx(each["counted_seconds"], rel=0.02)
        assert 0 < each["interval_seconds"] < 0.1 * each["sampled_seconds"]
    # What was counted is a part, and what was computed is what native drives compute.
    assert 0 < told["sampling"]["counted_steps"] < told["sampling"]["steps"] == told["steps"]
    assert told["weights_difference"] == 0.0
    assert (told["rounds"], told["more_rounds"]) == (3, [0, 0])
    assert len(list(workshop.runs.iterdir())) == 3
    workshop.assert_clean()

"""A model that is cut, on virtual machines: drives count the seconds of its front, the host has the rest."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from tests.support.commands import ARRAY
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import NAME, VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]

PLACED: dict[str, Any] = ARRAY | {
    "name": NAME,
    "engine": "qemu",
    "devices": [{"profile": "newport"}, {"profile": "generic-a53"}],
}
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits", "private": 0.02},
    "mode": "sync",
    "learning_rate": 0.1,
    "batch_size": 32,
    "rounds": 1,
    "sync": {"round_steps": 15},
}


def train(workshop: VmWorkshop, placement: str) -> dict[str, Any]:
    """Run the job with a placement; return its one round."""
    files = workshop.write("array.yaml", PLACED), workshop.write("job.yaml", JOB)
    workshop.runs = workshop.folder / f"runs-{placement}"
    arguments = ["run", files[1], "--array", files[0], "--runs", workshop.runs, "--json"]
    done = workshop.run(*arguments, "--placement", placement, seconds=500)
    assert done.code == 0, done.err
    assert done.json("run")["clock"] == "counted"
    (record,) = workshop.rounds()
    workshop.assert_clean()
    return dict(record)


def seconds(record: dict[str, Any], device: str) -> float:
    """Return the median compute seconds of a device's steps, the first ones left out."""
    parts = [part for step in record["steps"][3:] for part in step["devices"]]
    return float(statistics.median(part["compute_seconds"] for part in parts if part["device"] == device))


def test_drives_train_the_front_and_learn_what_they_learn_of_the_whole(workshop: VmWorkshop) -> None:
    whole, cut = (train(workshop, placement) for placement in ("none", "6"))
    # The same records, the same start: what one step after the other makes of them differs by rounding alone.
    for one, other in zip(whole["steps"], cut["steps"], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3)
        assert other["placement"]["clock"] == "modelled"
        assert other["placement"]["tail_seconds"] > 0
        assert one["placement"] is None
    for device in ("csd-00", "csd-01"):
        assert 0.5 * seconds(whole, device) < seconds(cut, device) < seconds(whole, device)
    # What crosses: 2 P' + 2 b a and labels, in place of 2 P, for each drive and step.
    crossed = [step["placement"]["up_bytes"] + step["placement"]["down_bytes"] for step in cut["steps"]]
    assert all(2 * 32 * (2 * 512 * 4 + 8) <= each <= 2 * 32 * (2 * 512 * 4 + 8) + 4000 for each in crossed)
    assert cut["array_seconds"] < whole["array_seconds"] * 1.5

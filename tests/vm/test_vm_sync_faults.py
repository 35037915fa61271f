"""Faults in synchronous runs on virtual machines: one array with a host that trains stays up for all of them."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.commands import wait_until
from tests.support.going import Going
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import NAME, ROUND_SECONDS, VmWorkshop, standing_array

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]

NODES = ("csd-00", "csd-01", "host")
# An epoch is two steps of similar size, for small ones take a fifth longer than the table says.
SLOW_BATCH = 44
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits", "private": 0.02},
    "mode": "sync",
    "tuner": "hypertune",
    "rounds": 500,
    "sync": {"round_steps": 2, "tuning": {"slow_batch": SLOW_BATCH}},
}


@pytest.fixture(scope="module")
def array(template: None) -> Iterator[VmWorkshop]:
    """Two drives and the host's node, which are up for all tests of this file."""
    with standing_array(JOB, host={"trains": True}) as workshop:
        yield workshop


@pytest.fixture
def start(array: VmWorkshop) -> Iterator[Callable[..., Going]]:
    with array.runs_of(**JOB) as start:
        yield start


def slow_until_retuned(run: Going, weight: int, wanted: Callable[[int], bool]) -> dict[str, Any]:
    """Give csd-01 a competing task of `weight` (0: end it) and return the first retune since whose batch is wanted."""
    # Seen before the order: a retune may come before the command that gave it has ended.
    seen = len(run.workshop.rounds())
    found: list[dict[str, Any]] = []
    said = f"slow: a competing task of weight {weight}" if weight else "slow: the competing task has ended"
    assert run.injected("csd-01", "slow", "--weight", str(weight)) == said

    def look() -> bool:
        retunes = [retune for record in run.workshop.rounds()[seen:] for retune in record["retunes"]]
        found[:] = [each for each in retunes if wanted(each["after"]["csd-01"])]
        return bool(found)

    wait_until(look, 3 * ROUND_SECONDS)
    return found[0]


def test_an_array_with_a_host_that_trains_stays_up_between_runs(array: VmWorkshop) -> None:
    machines = {machine.pid for machine in array.machines()}
    seen = []
    for _ in range(2):
        shutil.rmtree(array.runs, ignore_errors=True)
        done = array.run(*array.job_arguments(**JOB | {"rounds": 2, "target": None}), "--json", seconds=ROUND_SECONDS)
        assert done.code == 0, done.err
        assert done.json("run")["clock"] == "counted+modelled"
        rounds = array.rounds()
        assert [[part["device"] for part in record["devices"]] for record in rounds] == [list(NODES)] * 2
        seen.append([[p["batch_size"] for p in step["devices"]] for record in rounds for step in record["steps"]])
        arrays = {each["array"]: each for each in array.run("status", "--json").json("status")["arrays"]}
        listed = [(device["name"], device["state"]) for device in arrays[NAME]["devices"]]
        assert listed == [(node, "running") for node in NODES]
        assert {machine.pid for machine in array.machines()} == machines
    assert seen[0] == seen[1]


def test_a_machine_that_is_killed_in_a_step_costs_no_more_and_gets_work_again_when_revived(
    start: Callable[..., Going], array: VmWorkshop
) -> None:
    run = start()
    run.wait_for_round(*NODES)
    assert run.injected("csd-01", "kill") == "kill"
    run.wait_for_round("csd-00", "host")
    assert run.injected("csd-01", "revive") == "revive: incarnation 2"
    back = run.wait_for_round(*NODES)

    # It comes back with other work beside the trainer: HyperTune sees it, and sees it go.
    # Its first steps are slower, too, and may be corrected for.
    slowed = slow_until_retuned(run, 100, lambda batch: 0 < batch < 0.6 * SLOW_BATCH)
    slow_until_retuned(run, 0, lambda batch: batch > 0.8 * SLOW_BATCH)
    run.interrupt()

    rounds = array.rounds()
    steps = [step for record in rounds for step in record["steps"]]
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    for step in steps:
        assert sum(part["weight"] for part in step["devices"]) == pytest.approx(1.0, rel=1e-12)
    assert sum(bool(step["lost"]) for step in steps) <= 1
    retunes = [retune for record in rounds for retune in record["retunes"]]
    gone = next(retune for retune in retunes if retune["after"]["csd-01"] == 0)
    joined = next(retune for retune in retunes if retune["before"]["csd-01"] == 0 < retune["after"]["csd-01"])
    assert gone["before"]["csd-01"] == joined["after"]["csd-01"]
    assert gone["step"] < joined["step"] < slowed["step"]
    assert all(part["samples"] > 0 for part in back["devices"])
    assert len(array.machines()) == 2

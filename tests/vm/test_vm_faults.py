"""`csd-emu inject` on real virtual machines: one array that stays up, and a run on it for each test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.going import Going
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import NAME, VmWorkshop, standing_array

pytestmark = [pytest.mark.vm, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]

JOB: dict[str, Any] = {"data": {"source": "digits"}, "epochs": 1, "batch_size": 64, "rounds": 500}
BOTH = ("csd-00", "csd-01")


@pytest.fixture(scope="module")
def array(template: None) -> Iterator[VmWorkshop]:
    """Two drives that are up for all tests of this file."""
    with standing_array(JOB) as workshop:
        yield workshop


@pytest.fixture
def start(array: VmWorkshop) -> Iterator[Callable[..., Going]]:
    with array.runs_of(**JOB) as start:
        yield start


@pytest.mark.long
def test_a_machine_that_is_killed_and_revived_takes_part_again(start: Callable[..., Going], array: VmWorkshop) -> None:
    run = start()
    run.wait_for_round(*BOTH)
    run.refused("csd-01 runs, so it cannot be revived", 1, "csd-01", "revive")
    assert run.injected("csd-01", "kill") == "kill"
    assert len(array.machines()) == 1
    run.wait_for_round("csd-00")
    run.refused(f"csd-emu inject {NAME} csd-01 revive starts it again", 1, "csd-01", "freeze")
    assert run.injected("csd-01", "revive") == "revive: incarnation 2"
    run.wait_for_round(*BOTH)
    run.interrupt()
    assert len(array.machines()) == 2
    events = [what for what in run.events("csd-01") if what != "lost"]  # none between two rounds
    assert events == ["joined", "injected", "left", "injected", "rejoined"]


@pytest.mark.long
def test_a_machine_that_is_frozen_comes_back_when_it_is_thawed(start: Callable[..., Going]) -> None:
    """The host's watchdog ends its session; thawed, the agent finds its stream dead and dials again."""
    run = start(watchdog="60 s")
    assert run.injected("csd-00", "freeze") == "freeze"
    run.wait_for_round("csd-01")
    assert any("silent for 60 s" in detail for detail in run.details("lost"))
    assert run.injected("csd-00", "freeze") == "freeze"  # it is so already
    assert run.injected("csd-00", "thaw") == "thaw"
    run.wait_for_round(*BOTH)
    assert run.injected("csd-00", "thaw") == "thaw"
    run.wait_for_round(*BOTH)
    run.interrupt()
    assert run.events("csd-01") == ["joined"]


@pytest.mark.long
def test_a_machine_that_is_cut_off_comes_back_when_it_is_healed(start: Callable[..., Going]) -> None:
    """Nothing is closed, as with a cable that is pulled: each side has to find out by itself."""
    run = start(watchdog="60 s")
    assert run.injected("csd-01", "cut") == "cut"
    run.wait_for_round("csd-00")
    assert any("silent for 60 s" in detail for detail in run.details("lost"))
    assert run.injected("csd-01", "heal") == "heal"
    run.wait_for_round(*BOTH)
    run.interrupt()
    assert run.events("csd-00") == ["joined"]


@pytest.mark.long
def test_a_competing_task_of_equal_weight_doubles_the_counted_time(start: Callable[..., Going]) -> None:
    run = start()
    before = counted(run.wait_for_round(*BOTH))
    assert run.injected("csd-00", "slow", "--weight", "100") == "slow: a competing task of weight 100"
    slowed = counted(run.wait_for_round(*BOTH))
    assert run.injected("csd-00", "slow", "--weight", "0") == "slow: the competing task has ended"
    after = counted(run.wait_for_round(*BOTH))
    run.interrupt()
    alone = {device: (before[device] + after[device]) / 2 for device in BOTH}
    print(f"slowed over alone: { ({device: slowed[device] / alone[device] for device in BOTH}) }")
    assert slowed["csd-00"] / alone["csd-00"] == pytest.approx(2, rel=0.02)
    assert slowed["csd-01"] / alone["csd-01"] == pytest.approx(1, rel=0.02)


@pytest.mark.long
def test_a_damaged_slice_costs_its_sender_the_round(start: Callable[..., Going]) -> None:
    run = start()
    seen = len(run.workshop.rounds())  # the command may end after the round in which the slice was sent
    assert run.injected("csd-01", "corrupt") == "corrupt: the next slice that it sends"
    run.wait_for_round("csd-00", since=seen)
    run.wait_for_round(*BOTH)
    run.interrupt()
    (lost,) = run.details("lost")
    assert "csd-01: " in lost
    assert "+0: " in lost
    assert "checksum" in lost


@pytest.mark.long
def test_a_machine_trains_on_with_a_full_disk_that_takes_no_space_here(
    start: Callable[..., Going], array: VmWorkshop
) -> None:
    run = start()
    before = array.disk_bytes("csd-00")
    filled = run.injected("csd-00", "fill")
    assert int(filled.split()[1]) > 500 << 20
    run.wait_for_round(*BOTH)
    run.wait_for_round(*BOTH)
    assert array.disk_bytes("csd-00") - before < 64 << 20
    assert run.injected("csd-00", "clear") == "clear: its disk is free again"
    run.wait_for_round(*BOTH)
    run.interrupt()
    assert run.details("failed") == []
    assert run.events("csd-00") == ["joined", "injected", "injected"]


def counted(record: dict[str, Any]) -> dict[str, float]:
    """Each device's counted seconds of a round."""
    assert record["clock"] == "counted"
    return {part["device"]: sum(part["stopwatch_seconds"].values()) for part in record["devices"]}

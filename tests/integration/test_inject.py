"""`csd-emu inject` on the native engine, beside a run that is a process of its own."""

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.commands import ARRAY, Done, Workshop
from tests.support.going import Going, runs_on

# A revived agent outlives the command that started it on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture
def start(workshop: Workshop, csd_emu: Callable[..., Done]) -> Iterator[Callable[..., Going]]:
    with runs_on(workshop, lambda *fault: csd_emu("inject", "lab", *fault), rounds=30, epochs=8) as start:
        yield start


@pytest.mark.long
def test_a_drive_that_is_killed_and_revived_takes_part_again(
    start: Callable[..., Going], csd_emu: Callable[..., Done]
) -> None:
    run = start()
    run.refused("csd-01 runs, so it cannot be revived", 1, "csd-01", "revive")
    assert run.injected("csd-01", "kill") == "kill"
    run.wait_for_round("csd-00")
    for fault in ("kill", "freeze", "thaw"):
        run.refused("csd-emu inject lab csd-01 revive starts it again", 1, "csd-01", fault)
    run.refused("csd-01 has no session with the run", 1, "csd-01", "corrupt")
    assert run.injected("csd-01", "revive") == "revive: incarnation 2"
    run.wait_for_round("csd-00", "csd-01")
    (array,) = csd_emu("status", "--json").json("status")["arrays"]
    assert [device["incarnation"] for device in array["devices"]] == [1, 2]
    rounds = run.finish()
    assert len(rounds) == 30
    assert (rounds[0]["lost"], rounds[-1]["lost"]) == ([], [])
    events = [what for what in run.events("csd-01") if what != "lost"]  # none between two rounds
    assert events == ["joined", "injected", "left", "injected", "rejoined"]
    assert run.events("csd-00") == ["joined"]
    assert run.details("injected") == ["kill", "revive: incarnation 2"]


@pytest.mark.long
def test_a_drive_that_is_frozen_or_cut_off_comes_back_by_itself(start: Callable[..., Going]) -> None:
    """Frozen, it is silent until the watchdog ends its session; thawed, it finds that out and dials again."""
    run = start(watchdog="4 s")
    assert run.injected("csd-00", "freeze") == "freeze"
    run.wait_for_round("csd-01")
    assert any("silent for 4 s" in detail for detail in run.details("lost"))
    assert run.injected("csd-00", "thaw") == "thaw"
    run.wait_for_round("csd-00", "csd-01")
    begin = time.monotonic()
    assert run.injected("csd-01", "cut", "--for", "2").endswith("; then heal")
    assert time.monotonic() - begin >= 2
    run.wait_for_round("csd-00", "csd-01")
    rounds = run.finish()
    assert len(rounds) == 30
    assert any(record["lost"] == ["csd-01"] for record in rounds)
    for device in ("csd-00", "csd-01"):
        events = run.events(device)
        assert events.count("injected") == 2
        assert "refused" not in events
        assert events[-1] == "rejoined"


@pytest.mark.long
def test_a_slowed_drive_takes_twice_the_modelled_time(start: Callable[..., Going], workshop: Workshop) -> None:
    workshop.write("array.yaml", ARRAY | {"clock": "modelled"})
    run = start(rounds=20)
    before = {part["device"]: seconds(part) for part in run.wait_for_round("csd-00", "csd-01")["devices"]}
    assert run.injected("csd-00", "slow") == "slow: a competing task of weight 100"
    after = {part["device"]: seconds(part) for part in run.wait_for_round("csd-00", "csd-01")["devices"]}
    assert after["csd-00"] == pytest.approx(2 * before["csd-00"])
    assert after["csd-01"] == pytest.approx(before["csd-01"])
    assert run.injected("csd-00", "slow", "--weight", "0") == "slow: the competing task has ended"
    again = {part["device"]: seconds(part) for part in run.wait_for_round("csd-00", "csd-01")["devices"]}
    assert again == pytest.approx(before)
    run.finish()
    assert run.details("lost") == []


@pytest.mark.long
def test_a_damaged_slice_costs_its_sender_the_round(start: Callable[..., Going]) -> None:
    run = start(rounds=40, epochs=2)
    run.refused("its disk is the host machine's; use qemu", 1, "csd-00", "fill")
    seen = len(run.workshop.rounds())  # the command may end after the round in which the slice was sent
    assert run.injected("csd-01", "corrupt") == "corrupt: the next slice that it sends"
    run.wait_for_round("csd-00", since=seen)
    run.wait_for_round("csd-00", "csd-01")
    run.finish()
    (lost,) = run.details("lost")
    assert "csd-01: " in lost
    assert "+0: " in lost
    assert "checksum" in lost
    events = run.events("csd-01")
    assert events[:2] == ["joined", "injected"]
    assert events[-1] == "rejoined"


def seconds(part: dict[str, Any]) -> float:
    return float(sum(part["device_seconds"].values()))


@pytest.mark.long
def test_a_drive_on_the_wall_clock_cannot_be_slowed_and_says_why(
    start: Callable[..., Going], workshop: Workshop
) -> None:
    workshop.write("array.yaml", ARRAY | {"clock": "wall"})
    run = start(rounds=8)
    run.refused("cannot run a competing task: its agent has no cgroup of its own; use qemu", 1, "csd-00", "slow")
    assert len(run.finish()) == 8
    assert run.details("injected") == []


def test_faults_beside_no_run(workshop: Workshop, csd_emu: Callable[..., Done]) -> None:
    """An array that is up without a run: its drives can be killed, revived and frozen; a run finds them as they are."""
    refused(csd_emu("inject", "lab", "csd-00", "kill"), "array 'lab' is not up; none is; csd-emu up starts one")
    assert csd_emu("up", workshop.array, "--job", workshop.job).code == 0
    refused(csd_emu("inject", "lap", "csd-00", "kill"), "array 'lap' is not up; did you mean 'lab'?")
    refused(csd_emu("inject", "lab", "csd-02", "kill"), "has no device 'csd-02'; did you mean 'csd-0")
    refused(csd_emu("inject", "lab", "csd-00", "kil"), "there is no fault 'kil'; did you mean 'kill'?")
    for fault in ("corrupt", "cut", "slow"):
        refused(csd_emu("inject", "lab", "csd-00", fault), f"{fault} is done by the run on array 'lab', and none is")

    for incarnation in (2, 3):
        report = csd_emu("inject", "lab", "csd-00", "kill", "--json").json("inject")
        assert (report["detail"], report["recorded"]) == ("kill", False)
        assert len(workshop.agents()) == 1
        detail = csd_emu("inject", "lab", "csd-00", "revive", "--json").json("inject")["detail"]
        assert detail == f"revive: incarnation {incarnation}"
    assert "no run is going on that could record it" in csd_emu("inject", "lab", "csd-01", "freeze", "--for", "0").out
    done = csd_emu(*workshop.job_arguments(rounds=2, target=None), "--json")
    assert done.code == 0, done.err
    assert [len(record["devices"]) for record in workshop.rounds()] == [2, 2]
    assert csd_emu("inject", "lab", "csd-01", "freeze").code == 0  # down ends a frozen one too
    assert csd_emu("down", "lab", "--json").json("down")["ended"] == {"lab": ["csd-00", "csd-01"]}
    workshop.assert_clean()


@pytest.mark.long
def test_a_revived_drive_does_not_outlive_its_array(workshop: Workshop, csd_emu: Callable[..., Done]) -> None:
    assert csd_emu("up", workshop.array).code == 0
    assert csd_emu("inject", "lab", "csd-00", "kill").code == 0
    commands = [workshop.start("inject", "lab", "csd-00", "revive"), workshop.start("down", "lab")]
    codes = [finished(command) for command in commands]
    assert codes[1] == 0
    workshop.assert_clean()


def finished(process: subprocess.Popen[str]) -> int:
    _, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    return process.returncode


def refused(done: Done, message: str) -> None:
    assert done.code == 2
    assert message in done.err

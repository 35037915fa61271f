"""csd-emu on real virtual machines, as a user's own process."""

import random
import signal
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

from csd_emu.engines.qemu.domain_xml import read_tag
from csd_emu.profiles import get_profile
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from tests.support.commands import wait_until
from tests.support.machines import DAEMON_OUTLIVES
from tests.vm.conftest import NAME, VmWorkshop

pytestmark = [pytest.mark.vm, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]


def test_a_federated_run_on_virtual_machines_reaches_its_target(workshop: VmWorkshop) -> None:
    job = {"data": {"source": "digits"}, "epochs": 1, "batch_size": 16, "target": {"accuracy": 0.75}}
    done = workshop.run(*workshop.job_arguments(**job), "--json", seconds=300)
    assert done.code == 0, done.err
    summary = done.json("run")
    assert summary["accuracy"] >= 0.75
    assert (summary["engine"], summary["clock"]) == ("qemu", "counted")
    rounds = workshop.rounds()
    assert len(rounds) == summary["rounds"]
    assert all(record["lost"] == [] for record in rounds)
    newport = get_profile("newport")
    for record in rounds:
        assert [part["device"] for part in record["devices"]] == ["csd-00", "csd-01"]
        for part in record["devices"]:
            counted = PhaseSeconds(**part["stopwatch_seconds"])
            assert PhaseSeconds(**part["device_seconds"]) == newport.device_seconds(counted)
            assert all(getattr(counted, phase) > 0 for phase in ("forward", "backward", "update", "encode"))
    workshop.assert_clean()


@pytest.mark.long
def test_ctrl_c_at_three_moments_leaves_no_machine_and_no_daemon(workshop: VmWorkshop) -> None:
    """While the machines start, when the first is there, and in training; the seconds in between are drawn."""
    arguments = workshop.job_arguments(rounds=500, target={"accuracy": 1.0})
    moments = {
        "at once": lambda: True,
        "a machine is there": lambda: len(workshop.machines()) > 0,
        "training": lambda: len(workshop.rounds()) >= 1,
    }
    seed = random.SystemRandom().randrange(2**32)
    generator = random.Random(seed)
    for name, moment in moments.items():
        process = workshop.start(*arguments)
        wait_until(moment, seconds=180)
        delay = generator.uniform(0, 3)
        print(f"{name}, {delay:.2f} s later (seed {seed})")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode in (130, -signal.SIGINT), err
        assert process.returncode == -signal.SIGINT or "Traceback" not in err
        workshop.assert_clean()


@pytest.mark.long
def test_a_machine_that_dies_is_recorded_and_the_run_goes_on(workshop: VmWorkshop) -> None:
    process = workshop.start(*workshop.job_arguments(rounds=4, epochs=1, target={"accuracy": 1.0}), "--json")
    wait_until(workshop.rounds, seconds=180)
    (machine,) = [each for each in workshop.machines() if f"guest=csd-{NAME}-csd-01" in " ".join(each.cmdline())]
    machine.kill()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1, err
    rounds = workshop.rounds()
    assert [record["round"] for record in rounds] == [1, 2, 3, 4]
    assert rounds[-1]["lost"] == ["csd-01"]
    workshop.assert_clean()


def test_a_dry_run_prints_the_domain_of_each_drive_and_starts_none(workshop: VmWorkshop) -> None:
    report = workshop.run("validate", workshop.array, "--dry-run", "--json").json("validate")
    assert set(report["domains"]) == {"csd-00", "csd-01"}
    for name, xml in report["domains"].items():
        tag = read_tag(xml)
        assert tag is not None
        assert (tag.array, tag.device) == (NAME, name)
        assert ElementTree.fromstring(xml).findtext("name") == f"csd-{NAME}-{name}"
    workshop.assert_clean()


def test_images_are_listed(workshop: VmWorkshop) -> None:
    report = workshop.run("image", "list", "--json").json("image")
    assert [image["current"] for image in report["images"]].count(True) == 1
    assert report["removed"] == []

"""What goes wrong with real drives: cut copies, full disks, other host keys, wrong clocks, half-finished upgrades."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_emu.image.initramfs import KeyPair
from tests.targets import BROKEN, DUMB, Light, Target, target, write_inventory

pytestmark = [pytest.mark.vm, pytest.mark.long]
YEAR_SECONDS = 365.25 * 86400
AFTER_ALL_CERTIFICATES = 130.5 * YEAR_SECONDS  # since 1970
# Some are on their way when the connection breaks, and are lost.
CUT_BYTES, LOST_BYTES = 10_000_000, 6_000_000


@pytest.fixture(scope="module")
def machine() -> Iterator[Target]:
    with target("bookworm") as drive:
        yield drive


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    return Light(tmp_path, monkeypatch)


@pytest.fixture
def drive(machine: Target, light: Light) -> Iterator[Target]:
    """The machine with nothing of ours on it, before and after a test."""
    before, accounts = machine.listing(), machine.accounts()
    yield machine
    machine.trust()
    machine.proxy.heal()
    light.all(machine.inventory(), "uninstall")
    assert machine.listing() == before
    assert machine.accounts() == accounts


def test_a_copy_that_was_cut_goes_on_where_it_ended(drive: Target, light: Light) -> None:
    inventory = drive.inventory()
    drive.proxy.cut_after(CUT_BYTES)
    failed = light.do(inventory, "install", "failed")
    assert drive.proxy.cuts == 1
    assert "connection" in failed.what
    assert light.do(inventory, "status").what == "nothing is installed"
    light.do(inventory, "start", "failed")
    before = drive.proxy.sent_bytes
    light.do(inventory, "install")
    assert drive.proxy.sent_bytes - before < light.packed_bytes() - (CUT_BYTES - LOST_BYTES)
    light.do(inventory, "start")
    drive.wait_for(lambda: light.do(inventory, "status").facts["state"] == "waiting")


def test_a_drive_without_space_is_told_so_and_gets_nothing(drive: Target, light: Light) -> None:
    drive.machine.fill_disk(20_000_000)
    try:
        sent = drive.proxy.sent_bytes
        failed = light.do(drive.inventory(), "install", "failed")
        assert "free" in failed.what
        assert drive.proxy.sent_bytes - sent < 1_000_000
        assert not drive.has_user()
    finally:
        drive.says("rm /filler")
    light.do(drive.inventory(), "install")


def test_an_upgrade_without_space_leaves_what_runs(drive: Target, light: Light) -> None:
    inventory = drive.inventory()
    one = light.do(inventory, "install").facts["version"]
    light.do(inventory, "start")
    drive.wait_for(lambda: light.do(inventory, "status").facts["running"] == one)
    light.use("two")
    drive.machine.fill_disk(1_000_000)
    try:
        light.do(inventory, "upgrade", "failed")
        status = light.do(inventory, "status").facts
        assert (status["version"], status["running"]) == (one, one)
    finally:
        drive.says("rm /filler")
    assert light.do(inventory, "upgrade").facts["version"] != one


def test_another_host_key_is_refused_before_anything_is_sent(drive: Target, light: Light) -> None:
    drive.trust(KeyPair.make().public.decode().strip())
    for verb in ("probe", "install", "status", "uninstall"):
        failed = light.do(drive.inventory(), verb, "failed")
        assert "host key" in failed.what
        assert str(drive.known_hosts) in failed.what
    drive.known_hosts.write_text("")
    assert "host key" in light.do(drive.inventory(), "install", "failed").what
    assert not drive.has_user()


@pytest.mark.parametrize("years", [-15, 20])
def test_a_clock_that_is_years_off_hinders_nothing(drive: Target, light: Light, years: int) -> None:
    inventory, now = drive.inventory(), float(drive.says("date +%s"))
    drive.machine.set_clock(now + years * YEAR_SECONDS)
    try:
        version = light.do(inventory, "install").facts["version"]
        light.do(inventory, "start")
        drive.wait_for(lambda: light.do(inventory, "status").facts["running"] == version)
        light.do(inventory, "install", "unchanged")
        # It is set right while the agent runs.
        drive.machine.set_clock(now)
        assert light.do(inventory, "status").facts["running"] == version
        light.do(inventory, "stop")
    finally:
        drive.machine.set_clock(now)


def test_a_clock_after_all_certificates_is_refused_with_its_remedy(drive: Target, light: Light) -> None:
    now = float(drive.says("date +%s"))
    drive.machine.set_clock(AFTER_ALL_CERTIFICATES)
    try:
        failed = light.do(drive.inventory(), "install", "failed")
    finally:
        drive.machine.set_clock(now)
    assert "date -s" in failed.what


def test_an_upgrade_that_is_cut_leaves_what_runs_through_a_loss_of_power(drive: Target, light: Light) -> None:
    inventory = drive.inventory()
    one = light.do(inventory, "install").facts["version"]
    light.do(inventory, "start")
    drive.wait_for(lambda: light.do(inventory, "status").facts["running"] == one)
    drive.says("sync")
    light.use("two")
    drive.proxy.cut_after(12_000)
    light.do(inventory, "upgrade", "failed")
    assert light.do(inventory, "status").facts["running"] == one
    drive.machine.reboot(by_force=True)
    drive.wait_for(lambda: light.do(inventory, "status").facts["running"] == one)
    two = light.do(inventory, "upgrade").facts["version"]
    assert light.do(inventory, "status").facts["running"] == two
    assert drive.says("ls /opt/csd-emu").split().count("incoming") == 0


@pytest.mark.parametrize("manner", [BROKEN, DUMB])
def test_a_version_that_does_not_run_is_never_left_in_use(drive: Target, light: Light, manner: str) -> None:
    inventory = drive.inventory()
    one = light.do(inventory, "install").facts["version"]
    light.do(inventory, "start")
    drive.wait_for(lambda: light.do(inventory, "status").facts["running"] == one)
    light.use("two", manner)
    failed = light.do(inventory, "upgrade", "failed")
    assert "planted" in failed.what or one in failed.what
    drive.wait_for(lambda: light.do(inventory, "status").facts["running"] == one)
    assert light.do(inventory, "status").facts["version"] == one


def test_one_unreachable_drive_does_not_disturb_the_other(drive: Target, light: Light) -> None:
    drives = {drive.name: drive.inventory_entry(), "gone": drive.inventory_entry(port=1)}
    inventory = write_inventory(drive.folder, drives)
    outcomes = {one.drive: one for one in light.all(inventory, "install")}
    assert outcomes[drive.name].result == "done"
    assert outcomes["gone"].result == "failed"
    assert "127.0.0.1:1" in outcomes["gone"].what

"""The whole life of an installation, on plain machines that know nothing of us and are reached over SSH only."""

from pathlib import Path

import pytest

from tests.targets import Light, Target, target

pytestmark = [pytest.mark.vm, pytest.mark.long]


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    return Light(tmp_path, monkeypatch)


def live(drive: Target, light: Light, user: str = "root") -> None:
    """Install, use, upgrade, go back, and remove; nothing may be left."""
    inventory = drive.inventory(user=user)
    before, accounts = drive.listing(), drive.accounts()

    assert light.do(inventory, "probe").facts["form"] == "wheels"
    assert drive.listing() == before
    planned = light.do(inventory, "install", "planned", dry_run=True)
    assert "would copy" in planned.what
    assert drive.listing() == before

    one = light.do(inventory, "install").facts["version"]
    assert drive.agents() == []
    inodes = drive.inodes()
    assert light.do(inventory, "install", "unchanged").facts["copied_bytes"] == 0
    assert drive.inodes() == inodes

    light.do(inventory, "start")
    light.do(inventory, "start", "unchanged")
    drive.wait_for(lambda: light.do(inventory, "status").facts["running"] == one)
    assert light.do(inventory, "status").facts["state"] == "waiting"
    assert "this is one" in light.do(inventory, "logs").facts["text"]
    drive.assert_unprivileged()

    light.use("two")
    two = light.do(inventory, "upgrade").facts["version"]
    assert two != one
    assert light.do(inventory, "status").facts["running"] == two
    light.do(inventory, "upgrade", "unchanged")
    light.do(inventory, "rollback")
    drive.wait_for(lambda: light.do(inventory, "status").facts["running"] == one)

    light.do(inventory, "stop")
    assert drive.agents() == []
    light.do(inventory, "stop", "unchanged")
    light.do(inventory, "uninstall")
    assert drive.listing() == before
    assert drive.accounts() == accounts
    light.do(inventory, "uninstall", "unchanged")


@pytest.mark.parametrize("kind", ["bookworm", "sysv"])
def test_a_whole_life_leaves_nothing(kind: str, light: Light) -> None:
    with target(kind) as drive:
        live(drive, light)


def test_a_user_with_sudo_does_as_well(light: Light) -> None:
    with target("bookworm") as drive:
        live(drive, light, "operator")


@pytest.mark.parametrize("kind", ["bookworm", "sysv"])
@pytest.mark.parametrize("by_force", [False, True], ids=["orderly", "power loss"])
def test_after_a_boot_an_agent_runs_that_was_started_and_only_then(kind: str, by_force: bool, light: Light) -> None:
    with target(kind) as drive:
        inventory = drive.inventory()
        version = light.do(inventory, "install").facts["version"]
        drive.machine.reboot(by_force=by_force)
        assert light.do(inventory, "status").facts["state"] == "stopped"
        light.do(inventory, "start")
        drive.wait_for(lambda: len(drive.agents()) > 0)
        drive.says("sync")
        drive.machine.reboot(by_force=by_force)
        drive.wait_for(lambda: light.do(inventory, "status").facts["running"] == version)
        light.do(inventory, "stop")
        drive.machine.reboot()
        assert drive.agents() == []
        assert light.do(inventory, "status").facts["state"] == "stopped"


def test_a_drive_of_another_architecture_is_left_as_it_was(light: Light) -> None:
    with target("armhf") as drive:
        inventory, before = drive.inventory(), drive.listing()
        for verb in ("probe", "install", "upgrade"):
            (outcome,) = light.all(inventory, verb)
            assert outcome.result == "failed", verb
            assert "processor is armv" in outcome.what
            assert "leave the drive out" in outcome.what
        assert drive.listing() == before


def test_through_a_jump_host(light: Light) -> None:
    with target("bookworm") as drive, target("bare", "jump", isolated=False) as jump:
        # From the jump host the server's loopback is the gateway of its own network.
        kind, key = drive.machine.known_hosts.read_text().split()[1:3]
        own = jump.machine.known_hosts.read_text()
        drive.known_hosts.write_text(f"[10.0.2.2]:{drive.machine.port} {kind} {key}\n{own}")
        there = {"host": "10.0.2.2", "port": drive.machine.port, "jump": f"root@127.0.0.1:{jump.machine.port}"}
        both = drive.folder / "ssh_config"
        both.write_text(f"IdentitiesOnly yes\nIdentityFile {drive.machine.key}\nIdentityFile {jump.machine.key}\n")
        inventory = drive.inventory(**there, key=None, ssh_config=str(both))
        light.do(inventory, "install")
        assert drive.has_user()

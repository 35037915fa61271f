"""The agent as it is, torch included, in its own root file system on machines that could not run it themselves."""

from pathlib import Path

import pytest

from csd_emu.util.paths import Paths
from tests.targets import Deployer, target

pytestmark = [pytest.mark.vm, pytest.mark.long]
# Unpacking a root file system and importing torch take minutes where all is emulated.
SECONDS = 3000.0
STATE_SECONDS = 300.0


@pytest.fixture
def deployer(tmp_path: Path) -> Deployer:
    """The bundles are those of this user: they take minutes to make."""
    return Deployer(Paths(Paths.default().cache, tmp_path / "state", tmp_path / "run"), SECONDS)


@pytest.mark.parametrize(("kind", "form"), [("bullseye", "rootfs"), ("bare", None)])
def test_a_life_in_a_root_file_system_of_its_own(kind: str, form: str | None, deployer: Deployer) -> None:
    with target(kind) as drive:
        inventory, before, accounts = drive.inventory(), drive.listing(), drive.accounts()

        done = deployer.do(inventory, "install", form=form)
        version = done.facts["version"]
        assert done.facts["form"] == "rootfs"
        assert (drive.agents(), drive.mounts()) == ([], [])
        again = deployer.do(inventory, "install", "unchanged", form=form)
        assert again.facts["copied_bytes"] == 0

        def waits() -> bool:
            found = deployer.do(inventory, "status").facts
            return (found["state"], found["running"]) == ("waiting", version)

        deployer.do(inventory, "enrol")
        deployer.do(inventory, "start")
        drive.wait_for(waits, STATE_SECONDS)
        drive.assert_unprivileged()
        drive.says("sync")
        drive.machine.reboot(by_force=True)
        drive.wait_for(waits, STATE_SECONDS)

        deployer.do(inventory, "stop")
        assert (drive.agents(), drive.mounts()) == ([], [])
        deployer.do(inventory, "start")
        drive.wait_for(waits, STATE_SECONDS)
        # It stops what runs, and takes the mounts away before it removes what lies below them.
        deployer.do(inventory, "uninstall")
        assert (drive.agents(), drive.mounts()) == ([], [])
        assert drive.listing() == before
        assert drive.accounts() == accounts

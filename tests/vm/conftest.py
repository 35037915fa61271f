import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.util.paths import HOME_VARIABLE, Paths
from host.app.array_actions import sweep
from host.fleet.array_state import array_folder
from tests.contract.laboratory import Laboratory
from tests.support.commands import ARRAY, Done, Workshop, processes, temporary_workshop, wait_until
from tests.support.going import Going, runs_on
from tests.support.machines import prepared_qemu

NAME = f"test-vm-{os.getpid()}"  # two test runs on one machine must not meet
LAB_NAME = f"test-lab-{os.getpid()}"
# Of emulation: a round takes seconds on a free machine, a minute on a busy one.
ROUND_SECONDS = 240.0


class VmWorkshop(Workshop):
    """A workshop whose array is virtual machines, on this user's normal cache of images and templates."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.array = self.write("array.yaml", ARRAY | {"name": NAME, "engine": "qemu"})
        self._arrays = Paths.default().arrays
        self.home = self._arrays / NAME  # where an agent of its own runs from: the host's node

    def inject(self, *arguments: str) -> Done:
        """Do something to a machine of the array."""
        return self.run("inject", NAME, *arguments, seconds=ROUND_SECONDS)

    def runs_of(self, **job: Any) -> contextlib.AbstractContextManager[Callable[..., Going]]:
        """Return what starts runs of `job`, with changes, on the array that is up (see `runs_on`)."""
        return runs_on(self, self.inject, ROUND_SECONDS, **job)

    @property
    def environment(self) -> dict[str, str]:
        """As for any workshop, but with the caller's folders: those of `Paths.default` in this process too."""
        own = super().environment
        del own[HOME_VARIABLE]
        return own | {key: value for key, value in os.environ.items() if key == HOME_VARIABLE}

    def machines(self) -> list[psutil.Process]:
        """The QEMU processes of this array."""
        return [process for process in qemu_processes() if f"guest=csd-{NAME}-" in " ".join(process.info["cmdline"])]

    def disk_bytes(self, device: str) -> int:
        """What a machine's root disk takes on this machine's."""
        return (self._arrays / NAME / "devices" / device / "disk.qcow2").stat().st_blocks * 512

    def assert_clean(self) -> None:
        """No machine of the array, no folder, no temporary file; no daemon, unless others have machines."""
        assert self.machines() == []
        assert not (self._arrays / NAME).exists()
        assert list(self.temporary.iterdir()) == []
        # One that was interrupted while it started ends by itself, after ten seconds without a client.
        wait_until(lambda: qemu_processes() or not daemons(), seconds=30)


def daemons() -> list[psutil.Process]:
    return [process for process in processes() if process.info["name"] in ("libvirtd", "virtqemud")]


def qemu_processes() -> list[psutil.Process]:
    return [process for process in processes() if process.info["name"].startswith("qemu-system")]


@pytest.fixture(scope="session")
def template() -> None:
    """Image and template are there; skipped or failed where there can be none (see tests.support.machines)."""
    prepared_qemu(ArrayConfig.model_validate(ARRAY | {"name": NAME, "engine": "qemu"})).close()


@pytest.fixture
def workshop(template: None) -> Iterator[VmWorkshop]:
    with temporary_workshop(VmWorkshop) as workshop:
        sweep([NAME], Paths.default())
        yield workshop
        sweep([NAME], Paths.default())


@contextlib.contextmanager
def standing_array(job: dict[str, Any], **changes: Any) -> Iterator[VmWorkshop]:
    """Bring up the workshop's array, with changes, for a whole file of tests; all of it is gone afterwards."""
    with temporary_workshop(VmWorkshop) as workshop:
        workshop.array = workshop.write("array.yaml", ARRAY | {"name": NAME, "engine": "qemu"} | changes)
        sweep([NAME], Paths.default())
        workshop.job_arguments(**job)
        up = workshop.run("up", workshop.array, "--job", workshop.job, "--json", seconds=300)
        assert up.code == 0, up.err
        devices = [device["name"] for device in up.json("up")["devices"]]
        yield workshop
        down = workshop.run("down", NAME, "--json", seconds=300)
        assert down.code == 0, down.err
        assert down.json("down")["ended"] == {NAME: devices}
        assert workshop.agents() == []
        workshop.assert_clean()


@pytest.fixture
def lab() -> Iterator[Laboratory]:
    """An array of virtual machines whose devices a test starts one by one, without a run."""
    config = ArrayConfig.model_validate(ARRAY | {"name": LAB_NAME, "engine": "qemu"})
    with contextlib.closing(prepared_qemu(config)) as engine, array_folder(Paths.default().arrays, LAB_NAME) as folder:
        engine.sweep(LAB_NAME)
        shutil.rmtree(folder / "devices", ignore_errors=True)
        laboratory = Laboratory(engine, config, folder)
        try:
            yield laboratory
        finally:
            laboratory.clear()

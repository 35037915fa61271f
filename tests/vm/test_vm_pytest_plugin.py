"""The pytest plugin and the pipelines of the example project, on virtual machines."""

import shutil
import signal

import pytest

from csd_emu.util.paths import Paths
from tests.support.commands import wait_until
from tests.support.machines import DAEMON_OUTLIVES
from tests.support.pipelines import Runner
from tests.support.projects import EXAMPLE, Project
from tests.vm.conftest import VmWorkshop, qemu_processes

pytestmark = [pytest.mark.vm, pytest.mark.filterwarnings(DAEMON_OUTLIVES)]
SECONDS = 900.0


def machines() -> list[str]:
    """The drives of any test session of the plugin."""
    lines = [" ".join(process.info["cmdline"]) for process in qemu_processes()]
    return [line for line in lines if "guest=csd-pytest-" in line]


def assert_nothing_left() -> None:
    """No machine and no folder of the plugin's arrays; another session's may be there."""
    arrays = Paths.default().arrays
    assert machines() == []
    assert not arrays.is_dir() or [path for path in arrays.iterdir() if path.name.startswith("pytest-")] == []


def example(workshop: VmWorkshop) -> Project:
    project = Project(workshop, home=False)
    shutil.copytree(EXAMPLE, project.folder, dirs_exist_ok=True)
    return project


@pytest.mark.long
def test_the_example_project_passes(workshop: VmWorkshop) -> None:
    done = example(workshop).test("--csd-require", "-q", seconds=SECONDS)
    assert done.code == 0, done.out
    assert "4 passed" in done.out
    assert_nothing_left()


@pytest.mark.long
def test_it_does_with_two_processes_that_share_the_template(workshop: VmWorkshop) -> None:
    done = example(workshop).test("--csd-require", "-q", "-n", "2", seconds=SECONDS)
    assert done.code == 0, done.out
    assert "4 passed" in done.out
    assert_nothing_left()


@pytest.mark.long
def test_nothing_is_left_when_the_tests_are_killed(workshop: VmWorkshop) -> None:
    project = example(workshop)
    process = project.start("--csd-require", "-k", "survives")
    wait_until(lambda: len(machines()) == 3 or process.poll() is not None, SECONDS)
    assert process.poll() is None, process.communicate()[0]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    wait_until(lambda: machines() == [], SECONDS)
    wait_until(lambda: not list(Paths.default().arrays.glob("pytest-*")), SECONDS)


@pytest.mark.long
def test_the_steps_for_github_build_pack_and_unpack_a_real_image(workshop: VmWorkshop) -> None:
    runner = Runner(workshop, native=False)
    runner.github()
    assert {path.name for path in (runner.artifacts / "reports").iterdir()} == {"tests.xml", "gate.xml"}
    (cached,) = (runner.cache).iterdir()
    assert (cached / "arm-image.tar.zst").stat().st_size > 50e6
    runner.environment["PYTEST_ADDOPTS"] = "--collect-only"
    runner.github()
    assert_nothing_left()


@pytest.mark.long
def test_the_script_for_gitlab_unpacks_an_image_into_a_folder_of_its_own(workshop: VmWorkshop) -> None:
    """Where the project's folder is all that the job has, as on GitLab: image and template are made there."""
    runner = Runner(workshop, native=False)
    runner.shell("csd-emu image key > ../key.txt")
    images = runner.cache / "csd-emu-image" / "arm-images"
    images.mkdir(parents=True)
    runner.shell(f"csd-emu image export {images}/$(cat ../key.txt).tar.zst")
    runner.gitlab()
    assert {path.name for path in (runner.artifacts / "reports").iterdir()} == {"tests.xml", "gate.xml"}
    assert list((runner.project.folder / ".csd-emu" / "cache" / "templates").glob("*/template.json"))
    assert not list((runner.project.folder / ".csd-emu" / "cache" / "downloads").glob("*.deb"))
    assert_nothing_left()

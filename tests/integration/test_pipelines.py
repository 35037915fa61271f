"""The pipeline files of the example project do what they say, with native drives in place of virtual machines."""

import pytest

from tests.support.commands import Workshop
from tests.support.junit import check_junit
from tests.support.pipelines import VARIABLES, Runner, known_packages

# What a runner's image has in any case.
EVERYWHERE = {"apt", "make", "passwd"}
INSTALLATIONS = ["pip install torch --index-url index", "pip install csd_emu.whl", "pip install --editable .[test]"]


def prepared(workshop: Workshop) -> Runner:
    """A runner for the example on native drives, which have wall time alone for a net of one's own: wide bands."""
    runner = Runner(workshop, native=True)
    array = runner.project.folder / "array.yaml"
    text = array.read_text()
    assert "engine: qemu" in text
    array.write_text(text.replace("engine: qemu", "engine: native"))
    bands = " ".join(f"--band {figure}=900%" for figure in ("records_per_device_second", "joules_per_record"))
    gate = "csd-emu ci run job.yaml --array array.yaml --baseline baseline.json --runs ../baseline"
    runner.shell(f"{gate} --update-baseline {bands}")
    return runner


def check(runner: Runner) -> None:
    reports = {path.name: path for path in (runner.artifacts / "reports").iterdir()}
    assert set(reports) == {"tests.xml", "gate.xml"}
    cases = [case.get("name") for case in check_junit(reports["gate.xml"].read_bytes()).iter("testcase")]
    assert cases == ["run", "accuracy", "records_per_device_second", "joules_per_record"]
    assert b'tests="4"' in reports["tests.xml"].read_bytes()
    assert len(list((runner.artifacts / "artifacts" / "gate").iterdir())) == 1
    assert runner.installed() == known_packages() - EVERYWHERE
    assert runner.called("pip") == INSTALLATIONS


def test_an_image_is_cached_before_a_test_can_fail_and_a_variable_that_is_missing_is_named(workshop: Workshop) -> None:
    runner = Runner(workshop, native=True)
    runner.environment["CSD_EMU_WHEEL"] = ""
    with pytest.raises(AssertionError, match="CSD_EMU_WHEEL: is not set"):
        runner.github()
    runner.environment |= VARIABLES | {"PYTEST_ADDOPTS": "--no-such-option"}
    with pytest.raises(AssertionError, match="no-such-option"):
        runner.github()
    (cached,) = runner.cache.iterdir()
    assert (cached / "arm-image.tar.zst").exists()


@pytest.mark.long
def test_the_steps_for_github_build_an_image_the_first_time_and_take_it_from_the_cache_afterwards(
    workshop: Workshop,
) -> None:
    runner = prepared(workshop)
    runner.github()
    check(runner)
    assert runner.called("csd-emu image") == ["csd-emu image build", "csd-emu image export"]
    (cached,) = runner.cache.iterdir()
    key = cached.name.removeprefix("csd-emu-image-")
    assert int(key, 16)

    runner.calls.write_text("")
    (runner.project.folder / "arm-image.tar.zst").unlink()
    runner.environment["PYTEST_ADDOPTS"] += " --collect-only"  # that the tests pass has been seen
    runner.github()
    assert runner.called("csd-emu image") == ["csd-emu image import"]


@pytest.mark.long
def test_the_script_for_gitlab_takes_the_image_from_the_cache_and_drops_those_of_other_versions(
    workshop: Workshop,
) -> None:
    runner = prepared(workshop)
    runner.shell("csd-emu image key > ../key.txt")
    key = (workshop.folder / "key.txt").read_text().strip()
    images = runner.cache / "csd-emu-image" / "arm-images"
    images.mkdir(parents=True)
    for name in (key, "0123456789abcdef"):
        (images / f"{name}.tar.zst").write_text("image\n")
    runner.gitlab()
    check(runner)
    assert runner.called("csd-emu image") == ["csd-emu image import"]
    assert [path.name for path in (runner.project.folder / "arm-images").iterdir()] == [f"{key}.tar.zst"]

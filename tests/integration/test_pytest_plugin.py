"""The pytest plugin in other projects, on native drives."""

import os
import shutil
import signal

import pytest

from tests.support.commands import Workshop, wait_until
from tests.support.projects import EXAMPLE, Project

JOB = '{"model": "digits_cnn", "data": {"source": "digits"}, "rounds": 1, "batch_size": 64}'
FAILING = f"""
def test_fails_in_its_own_way(csd_array):
    result = csd_array.train({JOB})
    csd_array.inject("csd-01", "kill")
    assert result.accuracy > 2, "planted"


def test_gets_a_whole_array_again(csd_array):
    assert csd_array.train({JOB}).summary.samples == 1437
    assert all("Traceback" not in csd_array.console(device) for device in csd_array.devices)
"""
PLAIN = {"pytest.ini": "[pytest]\naddopts = --strict-markers --strict-config\n"}


@pytest.fixture
def project(workshop: Workshop) -> Project:
    made = Project(workshop)
    for name, text in PLAIN.items():
        made.write(name, text)
    return made


def assert_nothing_left(workshop: Workshop) -> None:
    assert workshop.agents() == []
    assert workshop.arrays() == []


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_the_example_project_passes_alone_and_with_two_processes(workshop: Workshop, options: tuple[str, ...]) -> None:
    project = Project(workshop)
    shutil.copytree(EXAMPLE, project.folder, dirs_exist_ok=True)
    done = project.test("--csd-engine", "native", "-q", *options)
    assert done.code == 0, done.out
    assert "4 passed" in done.out
    assert_nothing_left(workshop)


@pytest.mark.long
def test_a_failing_test_shows_and_keeps_what_its_drives_said_and_the_next_gets_a_whole_array(
    project: Project, workshop: Workshop
) -> None:
    project.write("test_failing.py", FAILING)
    junit = "--junit-xml=out.xml", "-o", "junit_logging=all", "-o", "junit_family=xunit1"
    done = project.test("--csd-engine=native", "--csd-artifacts=artifacts", *junit)
    assert done.code == 1, done.out
    assert "1 failed, 1 passed" in done.out
    for title in ("csd-emu array pytest-main-", "csd-emu events of run 1", "csd-emu console csd-01", "csd-emu metrics"):
        assert title in done.out
    assert "csd-00 joined" in done.out
    assert "csd_train_samples_total{" in done.out
    (folder,) = (project.folder / "artifacts").iterdir()
    assert folder.name == "test_failing.py-test_fails_in_its_own_way"
    (directory,) = (folder / "runs" / "run-1").iterdir()
    assert {"summary.json", "records.jsonl", "report.html", "metrics.prom"} <= {
        path.name for path in directory.iterdir()
    }
    assert {path.name for path in (folder / "consoles").iterdir()} == {"csd-00.log", "csd-01.log"}
    assert "csd_train_samples_total" in (folder / "metrics.prom").read_text()
    assert_nothing_left(workshop)


@pytest.mark.long
def test_an_array_stays_up_between_tests_and_another_configuration_gets_another(
    project: Project, workshop: Workshop
) -> None:
    body = f"""
from pathlib import Path
import psutil
import pytest
SEEN = []

def agents(array):
    found = psutil.process_iter(["cwd"], ad_value="")
    folders = [(process.pid, Path(process.info["cwd"] or "/")) for process in found]
    return sorted(pid for pid, folder in folders if folder.parts[-3:-1] == (array.name, "devices"))

def test_a(csd_array):
    csd_array.train({JOB})
    SEEN.append(agents(csd_array))

def test_b(csd_array):
    csd_array.train({JOB}, rounds=2)
    SEEN.append(agents(csd_array))

@pytest.mark.csd(devices=3)
class TestThree:
    def test_c(self, csd_array):
        csd_array.train({JOB})
        SEEN.append(agents(csd_array))
        assert len(csd_array.devices) == 3

    @pytest.mark.csd(devices=1)
    def test_d(self, csd_array):
        csd_array.train({JOB})
        SEEN.append(agents(csd_array))

def test_e():
    a, b, c, d = SEEN
    assert a == b and len(a) == 2
    assert len(c) == 3 and len(d) == 1
    assert not set(a) & set(c) and not set(c) & set(d)
"""
    project.write("test_reuse.py", body)
    done = project.test("--csd-engine=native")
    assert done.code == 0, done.out
    assert_nothing_left(workshop)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_nothing_is_left_when_the_tests_are_interrupted_or_killed(
    project: Project, workshop: Workshop, number: signal.Signals, options: tuple[str, ...]
) -> None:
    """The keeper sees its pipe close, however its process ends."""
    long = JOB.replace('"rounds": 1', '"rounds": 5000')
    project.write("test_long.py", f"def test_long(csd_array):\n    csd_array.train({long})\n")
    process = project.start("--csd-engine=native", *options)
    wait_until(lambda: len(workshop.agents()) == 2 or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]
    if number is signal.SIGKILL:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=120)
    wait_until(lambda: workshop.agents() == [] and workshop.arrays() == [])


@pytest.mark.long
def test_a_run_that_nobody_waited_for_a_failing_fixture_and_a_misspelt_mark_leave_nothing(
    project: Project, workshop: Workshop
) -> None:
    body = f"""
import pytest

def test_does_not_wait(csd_array):
    csd_array.submit({JOB}, rounds=5000).wait_for_round(2)

@pytest.fixture
def broken(csd_array):
    csd_array.up({JOB})
    raise RuntimeError("planted")

def test_never_begins(broken):
    pass

@pytest.mark.csd(device=3)
def test_misspelt(csd_array):
    pass

def test_goes_on(csd_array):
    assert csd_array.train({JOB}).summary.rounds == 1
"""
    project.write("test_odd.py", body)
    done = project.test("--csd-engine=native")
    assert "2 passed, 2 errors" in done.out, done.out
    assert "did you mean 'devices'?" in done.out
    assert_nothing_left(workshop)


def test_where_no_machine_can_run_a_test_is_skipped_or_fails_as_asked(project: Project, workshop: Workshop) -> None:
    project.write("test_vm.py", f"def test_vm(csd_array):\n    csd_array.train({JOB})\n")
    project.write("conftest.py", "import os\nos.environ['PATH'] = '/nowhere'\n")
    skipped = project.test("-rs")
    assert "1 skipped" in skipped.out, skipped.out
    assert "no drives can be started here" in skipped.out
    required = project.test("--csd-require")
    assert "1 error" in required.out, required.out
    assert "EnvironmentUnfit" in required.out


def test_a_project_that_does_not_use_the_plugin_starts_nothing(project: Project, workshop: Workshop) -> None:
    program = "import sys\n\n\ndef test_plain():\n    heavy = {'torch', 'pydantic', 'libvirt', 'numpy', 'grpc'}\n"
    project.write("test_plain.py", program + "    assert not heavy & set(sys.modules)\n")
    done = project.test("--markers")
    assert "@pytest.mark.csd(devices=2" in done.out
    done = project.test("-q", "-p", "no:hypothesispytest")
    assert done.code == 0, done.out
    assert not workshop.home.exists()


@pytest.mark.parametrize("option", ["--basetemp=temporary", "-n1"])
def test_folders_of_other_tests_and_of_the_session_stay_when_an_array_is_opened(
    project: Project, workshop: Workshop, option: str
) -> None:
    body = """
import pytest
OTHER = []

@pytest.fixture(scope="session")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "set.txt"
    path.write_text("kept")
    return path

def test_a(tmp_path, data):
    (tmp_path / "mine.txt").write_text("kept")
    OTHER.append(tmp_path)

def test_b(tmp_path, data, csd_array):
    assert data.read_text() == "kept" and tmp_path.is_dir()
    assert (OTHER[0] / "mine.txt").read_text() == "kept"
"""
    project.write("test_folders.py", body)
    done = project.test("--csd-engine=native", option)
    assert done.code == 0, done.out
    assert_nothing_left(workshop)


@pytest.mark.long
def test_a_keeper_that_is_killed_costs_one_test_and_leaves_nothing(project: Project, workshop: Workshop) -> None:
    body = f"""
import os, signal

def test_killed(csd_array):
    csd_array.up({JOB})
    os.kill(csd_array._connection._process.pid, signal.SIGKILL)
    csd_array._connection._process.wait()

def test_goes_on(csd_array):
    assert csd_array.train({JOB}).summary.rounds == 1
"""
    project.write("test_killed.py", body)
    done = project.test("--csd-engine=native")
    assert done.code == 0, done.out
    assert_nothing_left(workshop)


def test_a_clock_that_needs_qemu_is_refused_without_it_before_any_test(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project.folder))
    project.write("test_own.py", "def test_own():\n    pass\n")
    done = project.test("--csd-clock", "sampled")
    assert done.code == pytest.ExitCode.USAGE_ERROR, done.out
    assert "ERROR: --csd-clock sampled counts steps on a virtual machine, and that is not possible here" in done.out
    assert "passed" not in done.out
    assert "Traceback" not in done.out
    assert project.test("--csd-clock", "modelled").code == 0

"""`up --stay` and `run --stay`: processes in the foreground that end when they are told to."""

import contextlib
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csd_emu.util.paths import Paths
from csd_lab.testkit.prometheus import free_port
from firmware_agent.common.errors import EnvironmentUnfit
from host.app.prepare import prepare_run
from host.app.run_job import NewRun, Stay, run_job
from host.app.stack import host_container as trainer
from host.cli.top_report import Readings
from host.config.resolve import resolve_run
from host.core.console import StageProgress
from host.core.summary import Summary
from host.fleet.array_state import is_present, present
from tests.support.commands import ARRAY, Done, Workshop, wait_until
from tests.support.outputs import checked

Command = Callable[..., Done]
Start = Callable[..., subprocess.Popen[str]]
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture
def start(workshop: Workshop) -> Iterator[Start]:
    """Starts commands; what a failed test leaves is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path) -> subprocess.Popen[str]:
        started.append(workshop.start(*arguments))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.long
def test_an_array_and_a_run_that_stay_see_a_drive_end(workshop: Workshop, csd_emu: Command, start: Start) -> None:
    port = free_port()
    workshop.write("array.yaml", ARRAY | {"host": {"metrics_port": port}})
    keeper = start("up", workshop.array, "--job", workshop.job, "--stay")
    wait_until(lambda: is_present(Paths.default().presence("lab")))
    assert csd_emu("up", workshop.array).code == 2

    run = start(*workshop.job_arguments(rounds=2, target=None), "--stay")
    wait_until(lambda: any(workshop.runs.glob("*/report.html")))
    assert (workshop.run_directory() / "summary.json").exists()
    assert ups(port) == {"csd-00": 1, "csd-01": 1}
    records = workshop.records(workshop.run_directory())

    assert csd_emu("inject", "lab", "csd-01", "kill").code == 0
    wait_until(lambda: ups(port) == {"csd-00": 1, "csd-01": 0})
    assert run.poll() is None
    assert workshop.records(workshop.run_directory()) == records  # the run itself is over

    code, out, err = end(run, signal.SIGTERM)
    assert (code, err.count("Traceback")) == (0, 0), err
    assert "accuracy" in out
    assert [Path(process.cwd()).name for process in workshop.agents()] == ["csd-00"]

    assert keeper.stdout is not None
    assert any("csd-01 has ended" in line for line in iter(keeper.stdout.readline, ""))
    code, out, err = end(keeper, signal.SIGINT)
    assert (code, err.count("Traceback")) == (0, 0), err
    workshop.assert_clean()


@pytest.mark.long
def test_a_run_that_brought_its_array_up_stays_and_ends_it(workshop: Workshop, start: Start) -> None:
    workshop.write("array.yaml", ARRAY | {"devices": [{"profile": "newport"}]})
    run = start(*workshop.job_arguments(rounds=1, epochs=1, target=None), "--stay", "--json")
    assert run.stdout is not None
    checked("run", "".join(iter(run.stdout.readline, "}\n")) + "}")
    assert len(workshop.agents()) == 1
    code, out, err = end(run, signal.SIGTERM)
    assert (code, out, err) == (0, "", "")
    workshop.assert_clean()


@pytest.mark.long
def test_who_keeps_an_array_up_ends_with_it_and_leaves_that_of_others_alone(
    workshop: Workshop, csd_emu: Command, start: Start
) -> None:
    keeper = start("up", workshop.array, "--stay")
    wait_until(lambda: is_present(Paths.default().presence("lab")))
    assert csd_emu("down", "lab").code == 0
    assert csd_emu("up", workshop.array).code == 0
    _, err = keeper.communicate(timeout=60)
    assert keeper.returncode == 2
    assert "array 'lab' was ended by another command" in err
    assert len(workshop.agents()) == 2
    assert csd_emu("down", "lab").code == 0
    workshop.assert_clean()


@pytest.mark.long
def test_a_run_stays_until_what_it_was_told_to_watch_fails(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the host's container lets go of an array whose drives' container has ended."""
    path, seen = Paths.default().presence("lab"), []
    request = prepare_run(
        resolve_run(workshop.job, workshop.write("small.yaml", ARRAY | {"devices": [{"profile": "newport"}]}))
    )
    monkeypatch.setattr(trainer, "_LOOK_SECONDS", 0.1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(present(path))

        def show(summary: Summary) -> None:
            seen.append(summary)
            stack.close()

        stay = Stay(show, lambda: trainer._watch_presence("lab", Paths.default()))
        with StageProgress(quiet=True) as progress, pytest.raises(EnvironmentUnfit, match="this one ends too"):
            run_job(request, Paths.default(), NewRun(workshop.runs), progress, quiet=True, stay=stay)
    assert len(seen) == 1
    workshop.assert_clean()


def test_a_finished_run_that_is_resumed_to_stay_says_how_it_ended(workshop: Workshop, csd_emu: Command) -> None:
    workshop.write("array.yaml", ARRAY | {"devices": [{"profile": "newport"}]})
    assert csd_emu(*workshop.job_arguments(rounds=1, epochs=1, target=None)).code == 0
    directory = workshop.run_directory()
    again = csd_emu("run", "--resume", directory, "--stay", "--json")
    assert again.json("run") == csd_emu("run", "--resume", directory, "--json").json("run")


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def ups(port: int) -> dict[str, float | None]:
    """The drives and whether they are up, as Prometheus would read it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        readings = Readings(answer.read().decode())
    return {device: readings.first("csd_device_up", device=device) for device in ("csd-00", "csd-01")}

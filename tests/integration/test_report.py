"""`csd-emu report`, and the report that every run leaves, however it ends."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import Done, Workshop, meanwhile, temporary_workshop, wait_until
from tests.support.pages import Page

PAINTED = True  # charts


def page_in(directory: Path) -> Page:
    page = Page((directory / "report.html").read_text(encoding="utf-8"))
    page.assert_sound()
    return page


@pytest.fixture(scope="module")
def once_finished() -> Iterator[Path]:
    """The directory of a run that missed its target."""
    with temporary_workshop(Workshop) as workshop:
        assert workshop.run_here(*workshop.job_arguments(rounds=2, target={"accuracy": 1.0})).code == 1
        yield workshop.run_directory()


@pytest.fixture
def directory(workshop: Workshop, once_finished: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(once_finished, workshop.runs / once_finished.name)


def test_a_run_is_reported_again_also_without_its_end(
    workshop: Workshop, csd_emu: Callable[..., Done], directory: Path
) -> None:
    assert "Finished after 2 rounds; the target accuracy 1 was missed." in page_in(directory).text
    before = (directory / "report.html").read_bytes()
    (directory / "report.html").unlink()

    done = csd_emu("report", directory, "--json")
    assert done.code == 0, done.err
    report = done.json("report")
    assert (report["finished"], report["rounds"], report["report"]) == (True, 2, str(directory / "report.html"))
    assert (directory / "report.html").read_bytes() == before

    (directory / "summary.json").unlink()
    records = (directory / "records.jsonl").read_bytes()
    (directory / "records.jsonl").write_bytes(records[:-20])
    output = workshop.folder / "elsewhere.html"
    done = csd_emu("report", directory, "--output", output)
    assert done.code == 0, done.err
    assert "The run did not finish" in done.out
    assert f"report: {output}" in done.out.replace("\n", "")
    assert "did not finish" in output.read_text()
    assert (directory / "report.html").read_bytes() == before


def test_what_cannot_be_reported_is_refused(workshop: Workshop, csd_emu: Callable[..., Done]) -> None:
    done = csd_emu("report", workshop.folder)
    assert done.code == 2
    assert "is no run directory: it has no records.jsonl" in done.err
    (workshop.folder / "records.jsonl").write_text("{}\n")
    done = csd_emu("report", workshop.folder)
    assert done.code == 2
    assert "records.jsonl: line 1 is no record" in done.err
    assert not (workshop.folder / "report.html").exists()


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Make every report fail from now on."""

    def fail(error: Exception) -> None:
        def write_report(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("host.monitoring.report.report_page.write_report", write_report)

    return fail


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError("no space"), MemoryError()])
def test_a_report_that_fails_loses_nothing_else(
    csd_emu: Callable[..., Done], fail: Callable[[Exception], None], directory: Path, error: Exception
) -> None:
    """Also of a run that was killed just before it."""
    for name in ("summary.json", "report.html"):
        (directory / name).unlink()
    fail(error)
    done = csd_emu("run", "--resume", directory, "--json")
    assert done.code == 1, done.err
    assert done.json("run")["rounds"] == 2
    assert_unreported(done, directory, error)


def assert_unreported(done: Done, directory: Path, error: Exception) -> None:
    assert "no report was written" in done.err
    assert str(error) in done.err
    names = {path.name for path in directory.iterdir()}
    assert {"summary.json", "model.safetensors", "records.jsonl"} <= names
    assert "report.html" not in names


def test_a_run_whose_report_fails_ends_as_it_should(
    workshop: Workshop, csd_emu: Callable[..., Done], fail: Callable[[Exception], None]
) -> None:
    error = RuntimeError("a bug")
    fail(error)
    done = csd_emu(*workshop.job_arguments(rounds=1, epochs=1, target=None), "--json")
    assert done.code == 0, done.err
    assert done.json("run")["rounds"] == 1
    assert_unreported(done, workshop.run_directory(), error)
    workshop.assert_clean()


def endless(workshop: Workshop) -> list[str | Path]:
    return workshop.job_arguments(rounds=500, epochs=1, target={"accuracy": 1.0})


@pytest.mark.long
def test_a_run_that_is_interrupted_reports_what_there_is(workshop: Workshop) -> None:
    process = workshop.start(*endless(workshop))
    wait_until(lambda: len(workshop.rounds()) >= 2)
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert_ended_early(workshop, err)


def test_a_run_that_loses_all_its_drives_reports_what_there_is(
    workshop: Workshop, csd_emu: Callable[..., Done]
) -> None:
    def kill() -> None:
        wait_until(lambda: len(workshop.rounds()) >= 2)
        for agent in workshop.agents():
            agent.kill()

    with meanwhile(kill):
        done = csd_emu(*endless(workshop))
    assert done.code == 1, done.err
    assert_ended_early(workshop, done.err)


def assert_ended_early(workshop: Workshop, err: str) -> None:
    assert "report.html" in err
    page = page_in(workshop.run_directory())
    assert "The run did not finish" in page.text
    assert "Ended early, after" in page.text
    workshop.assert_clean()

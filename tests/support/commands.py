"""Running csd-emu as a user does, and looking for what it left behind."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import yaml

from csd_emu.engines.native_engine import folder_of
from csd_emu.util.paths import HOME_VARIABLE
from host.cli import main as cli
from host.core.interrupts import INTERRUPTS
from tests import ROOT
from tests.support.outputs import checked

PROGRAM = [sys.executable, "-m", "host"]
ARRAY: dict[str, Any] = {"name": "lab", "engine": "native", "devices": [{"profile": "newport", "count": 2}]}
JOB: dict[str, Any] = {
    "model": "digits_cnn",
    "data": {"source": "digits", "partition": {"dirichlet": 0.5}},
    "rounds": 12,
    "epochs": 2,
    "target": {"accuracy": 0.95},
}


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self, command: str) -> dict[str, Any]:
        """Return its one JSON object, held against the published schema."""
        assert self.out, self.err
        return checked(command, self.out)


class Workshop:
    """A folder with an array file, a job file and csd-emu's own folders, all of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.runs, self.temporary = folder / "home", folder / "runs", folder / "tmp"
        self.temporary.mkdir()
        self.array = self.write("array.yaml", ARRAY)
        self.job = self.write("job.yaml", JOB)

    def write(self, name: str, content: dict[str, Any] | str) -> Path:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
        return path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {HOME_VARIABLE: str(self.home), "TMPDIR": str(self.temporary)}

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start a command as a process of its own."""
        return subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=ROOT,
            start_new_session=True,
        )

    def run(self, *arguments: str | Path, seconds: float = 120.0) -> Done:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=seconds)
        return Done(process.returncode, out, err)

    def run_here(self, *arguments: str | Path) -> Done:
        """Run a command in this process, for fixtures of a whole module, which cannot capture what it prints."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            for name in (HOME_VARIABLE, "TMPDIR"):
                patch.setenv(name, self.environment[name])
            code = _run_main(patch, *arguments)
        return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))

    def job_arguments(self, **changes: Any) -> list[str | Path]:
        """Arguments of a run of the test's array with a changed job."""
        return ["run", self.write("job.yaml", JOB | changes), "--array", self.array, "--runs", self.runs]

    def agents(self) -> list[psutil.Process]:
        """The agents that run from this workshop's folders."""
        found = []
        for process in processes():
            with contextlib.suppress(psutil.Error):
                if (folder := folder_of(process)) is not None and folder.is_relative_to(self.home):
                    found.append(process)
        return found

    def agent(self, device: str) -> psutil.Process:
        """The agent of a device."""
        return next(agent for agent in self.agents() if agent.cwd().endswith(device))

    def kill_agent(self, device: str) -> None:
        """End a device's agent by SIGKILL."""
        self.agent(device).kill()

    def assert_clean(self) -> None:
        """No process, no folder of an array, no temporary file."""
        assert self.agents() == []
        assert self.arrays() == []
        assert list(self.temporary.iterdir()) == []
        assert [path for path in self.home.rglob("*") if path.is_file()] == []

    def arrays(self) -> list[Path]:
        """The folders of arrays."""
        folder = self.home / "state" / "arrays"
        return list(folder.iterdir()) if folder.is_dir() else []

    def run_directory(self) -> Path:
        """The one run directory that a run has made."""
        (directory,) = self.runs.iterdir()
        return directory

    def records(self, directory: Path) -> list[dict[str, Any]]:
        """The records so far, without a last line that is being written."""
        path = directory / "records.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def rounds(self) -> list[dict[str, Any]]:
        """The rounds so far of the one run, if it has begun."""
        if not any(self.runs.glob("*/records.jsonl")):
            return []
        return [record for record in self.records(self.run_directory()) if record["kind"] == "round"]


AnyWorkshop = TypeVar("AnyWorkshop", bound=Workshop)


@contextlib.contextmanager
def temporary_workshop(kind: type[AnyWorkshop]) -> Iterator[AnyWorkshop]:
    """Make a workshop in a folder of its own, which is removed afterwards; agents that a failed test leaves are ended.

    Not below `tmp_path`, which nobody else may enter, while libvirt's daemon runs as another user than root; and short,
    for a Unix socket's path.
    """
    folder = Path(tempfile.mkdtemp(prefix="csd-"))
    folder.chmod(0o711)
    workshop = kind(folder)
    try:
        yield workshop
    finally:
        for process in workshop.agents():
            process.kill()
        shutil.rmtree(folder)


def in_process(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> Done:
    """Run a command in this process: the same `main`, without three seconds of imports."""
    capsys.readouterr()
    code = _run_main(monkeypatch, *arguments)
    captured = capsys.readouterr()
    return Done(code, captured.out, captured.err)


def _run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Return the exit code of `main`."""
    monkeypatch.setattr(sys, "argv", ["csd-emu", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    code = end.value.code
    if code == cli.INTERRUPTED and vars(cli)["INTERRUPTS"] is INTERRUPTS:
        raise KeyboardInterrupt  # it is the tests that are to end: a test's own signals go to others
    return code if isinstance(code, int) else int(code is not None)


@contextlib.contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Do something in another thread while this one is busy with a command; what is raised there is raised here."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(action)
        yield
        done.result()


def processes() -> list[psutil.Process]:
    """All processes that have not ended, each with name and command line as `info`; one may end at any time."""
    found = psutil.process_iter(["name", "cmdline", "status"], ad_value="")
    return [process for process in found if process.info["status"] != psutil.STATUS_ZOMBIE]


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)

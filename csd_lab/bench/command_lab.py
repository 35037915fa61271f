"""Files, homes and processes of the benches that run csd-emu's own commands, and what the runs leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from csd_emu.engines.native_engine import folder_of
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import HOME_VARIABLE
from csd_lab.testkit.prometheus import free_port
from firmware_agent.common.errors import EnvironmentUnfit
from host.core.records import Record, RoundRecord, StepRecord, decode_record
from host.monitoring.run_directory import RECORDS_FILE

WATCHDOG_SECONDS = 600.0
_LOOK_SECONDS, _KILL_SECONDS, _END_SECONDS = 0.002, 30.0, 60.0
_PROGRAM = [sys.executable, "-P", "-m", "host"]
_WORDS = 500


class CommandLab:
    """One folder of a bench; a context manager that ends whatever was started in it.

    Commands of one machine share a home, which has a name; commands of several homes know nothing of each other.

    Attributes:
        folder: of files, homes and logs.
    """

    def __init__(self, bench: str, folder: Path) -> None:
        """Use an empty folder; nothing is started yet."""
        self.folder, self._bench = folder, bench
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # a host ends its drives, and those that it is starting
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()
            process.wait()
        for home in self.folder.glob("home-*"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.run(home.name.removeprefix("home-"), "clean")

    def write(self, name: str, content: dict[str, Any]) -> Path:
        """Write a YAML file."""
        path = self.folder / name
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    def write_servers(self, servers: Sequence[str], array: Path, silence: str = "5 s") -> Path:
        """Write a servers file: each of `servers` has an array like `array`."""
        content: dict[str, Any] = {"name": "lab", "store": {"port": free_port()}}
        content["servers"] = [{"name": server, "array": array.name} for server in servers]
        return self.write("servers.yaml", content | {"membership": {"min": 1, "wait": "2 min", "silence": silence}})

    def start(self, home: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """Start a command; what it says goes to the home's log."""
        command, quiet = [*_PROGRAM, *map(str, arguments)], subprocess.DEVNULL
        with open(self._log(home), "ab") as log:
            process = subprocess.Popen(command, stdin=quiet, stdout=log, stderr=log, env=self._environment(home))
        self._started.append(process)
        return process

    def run(self, home: str, *arguments: str | Path) -> int:
        """Run a command to its end, and return its exit code."""
        command, quiet = [*_PROGRAM, *map(str, arguments)], subprocess.DEVNULL
        environment = self._environment(home)
        return subprocess.run(
            command, stdout=quiet, stderr=quiet, env=environment, timeout=WATCHDOG_SECONDS, check=False
        ).returncode

    @contextlib.contextmanager
    def store(self, servers: Path) -> Iterator[None]:
        """Have the store of a servers file inside the block."""
        process = self.start("store", "store", servers)
        if not self.wait(process, lambda: "until" in self._log("store").read_text()):
            raise self.failed("the store ended")
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            self.end(process)

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit code; a command that hangs is killed."""
        try:
            return process.wait(WATCHDOG_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def wait(
        self, process: subprocess.Popen[bytes], condition: Callable[[], bool], look_seconds: float = _LOOK_SECONDS
    ) -> bool:
        """Return True when the condition holds, False when the process has ended before.

        Raises:
            EnvironmentUnfit: neither comes.
        """
        deadline = Deadline(WATCHDOG_SECONDS)
        while not condition():
            if process.poll() is not None:
                return False
            if deadline.expired:
                raise self.failed(f"a run did nothing for {WATCHDOG_SECONDS:.0f} s of wall time")
            time.sleep(look_seconds)
        return True

    def processes_of(self, home: str, names: tuple[str, ...] = ()) -> list[psutil.Process]:
        """Return processes that work for a home: all of them, or those of these names; ``agent``: a drive's."""
        path, found = str(self._home(home)), []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command, values = process.cmdline(), process.environ()
                mine = values.get(HOME_VARIABLE) == path or any(f"{path}/" in part for part in command)
                mine = mine or any(f"{path}/" in value for value in values.values())
                is_agent = names == ("agent",) and folder_of(process) is not None
                if mine and (is_agent or not names or process.name().startswith(names)):
                    found.append(process)
        return found

    def kill(self, found: Sequence[psutil.Process]) -> int:
        """Send SIGKILL to all, wait until they have ended, and return how many they were."""
        children = {child.pid: child for child in self._started}
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        for each in found:
            with contextlib.suppress(psutil.Error, subprocess.TimeoutExpired):
                children.get(each.pid, each).wait(_KILL_SECONDS)  # psutil would take a child's exit code away
        return len(found)

    def words(self) -> str:
        """Return the last words of the commands, for a message."""
        logs = [log.read_text(errors="replace").strip() for log in sorted(self.folder.glob("*.log"))]
        return "; ".join(text.rpartition("\n")[2][-_WORDS:] for text in logs if text) or "without a word"

    def failed(self, what: str) -> EnvironmentUnfit:
        """Return the error that says what went wrong, with the last words."""
        return EnvironmentUnfit(f"bench {self._bench}: {what}: {self.words()}")

    def _home(self, name: str) -> Path:
        return self.folder / f"home-{name}"

    def _log(self, home: str) -> Path:
        return self.folder / f"{home}.log"

    def _environment(self, home: str) -> dict[str, str]:
        return os.environ | {HOME_VARIABLE: str(self._home(home))}


# How the line of a round begins.
ROUND = b'{"kind":"round"'


def newest(runs: Path) -> Path:
    """Return the newest run directory below `runs`, or one that does not exist: a run may have begun anew."""
    return max((path for path in runs.glob("*") if path.is_dir()), default=runs / "none")


def read_lines(directory: Path) -> list[bytes]:
    """Return the whole lines of a run's records so far, none if it has not begun."""
    path = directory / RECORDS_FILE
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def read_records(directory: Path) -> list[Record]:
    """Return a run's records so far."""
    return [decode_record(line) for line in read_lines(directory)]


def read_rounds(directory: Path) -> list[RoundRecord]:
    """Return the rounds of a run so far."""
    return [record for record in read_records(directory) if isinstance(record, RoundRecord)]


def read_steps(directory: Path) -> list[StepRecord]:
    """Return the synchronous steps of a run's rounds so far."""
    return [step for record in read_rounds(directory) for step in record.steps]


def count_rounds(directory: Path) -> int:
    """Return how many rounds of a run have ended, without reading what is in them."""
    return sum(line.startswith(ROUND) for line in read_lines(directory))

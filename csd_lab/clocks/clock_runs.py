"""Runs of one job on a clock, each a command of its own, and a folder in which they are kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

import firmware_agent
from csd_emu.config.array_file import NATIVE, QEMU, SAMPLED, ArrayConfig
from firmware_agent.common.errors import EnvironmentUnfit
from host.core.records import EventKind, EventRecord, RoundRecord, decode_record
from host.monitoring.run_directory import RECORDS_FILE

COUNTED: Final = "counted"
RunClock = Literal["counted", "sampled", "native"]
"""How a job is run: every step on virtual machines, some of them, or none, with modelled seconds."""
# Of a whole run; emulation takes seconds of wall time for a second of a drive.
RUN_SECONDS = 4 * 3600.0
_MEASURED_FILE, _SAID_CHARACTERS = "measured.json", 500
_AGAIN = "-again"
_PROGRAM = [sys.executable, "-P", "-m", "host"]


@dataclass(frozen=True)
class ClockRun:
    """A run that has ended.

    Attributes:
        clock: how it was run.
        directory: of the run.
        wall_seconds: of the whole command, starting and ending included.
        load_average: of the machine when it began, over a minute.
    """

    clock: RunClock
    directory: Path
    wall_seconds: float
    load_average: float

    def read_rounds(self) -> list[RoundRecord]:
        """Return its rounds."""
        return [record for record in self._records() if isinstance(record, RoundRecord)]

    def read_notes(self) -> list[str]:
        """Return what was noted, and which devices were lost or failed, in order."""
        kinds = (EventKind.NOTE, EventKind.LOST, EventKind.FAILED)
        events = [record for record in self._records() if isinstance(record, EventRecord)]
        return [f"{event.device}: {event.what.value}: {event.detail}" for event in events if event.what in kinds]

    def _records(self) -> list[Any]:
        return [decode_record(line) for line in (self.directory / RECORDS_FILE).read_bytes().splitlines()]


def array_on_clock(array: ArrayConfig, clock: RunClock) -> dict[str, Any]:
    """Return the content of the file of the same array on that clock."""
    content: dict[str, Any] = array.model_dump(mode="json", exclude_defaults=True)
    content["hypervisors"] = array.model_dump(mode="json")["hypervisors"]
    content["engine"] = NATIVE if clock == "native" else QEMU
    content["clock"] = {"counted": "auto", "sampled": SAMPLED, "native": "auto"}[clock]
    for group in content["devices"]:
        group.pop("engine", None)
    return content


def run_on_clock(job: Path, array: ArrayConfig, clock: RunClock, folder: Path, runs: Path) -> ClockRun:
    """Run a job as `csd-emu run` does.

    Args:
        job: its file.
        array: on which it runs; engine and clock are replaced.
        clock: how.
        folder: of the array's file; is made.
        runs: folder of the run directory; is made.

    Raises:
        EnvironmentUnfit: the run failed; its last words are in the message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"array-{clock}.yaml"
    file.write_text(yaml.safe_dump(array_on_clock(array, clock)), encoding="utf-8")
    command = [*_PROGRAM, "run", str(job), "--array", str(file), "--runs", str(runs), "--json"]
    begin, load = time.monotonic(), os.getloadavg()[0]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentUnfit(
            f"{job} on the clock {clock} took longer than {RUN_SECONDS:.0f} s of wall time"
        ) from None
    wall_seconds = time.monotonic() - begin
    try:
        directory = Path(json.loads(done.stdout)["run_directory"])
    except (ValueError, KeyError, TypeError):
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing")[-_SAID_CHARACTERS:]
        raise EnvironmentUnfit(f"{job} on the clock {clock} ended with {done.returncode}: {said}") from None
    return ClockRun(clock, directory, wall_seconds, load)


@dataclass(frozen=True)
class KeptRuns:
    """A folder in which runs are kept, so that what did not change is not run again.

    Attributes:
        folder: is made.
        anew: clocks that are run again whatever is kept.
    """

    folder: Path
    anew: frozenset[str] = frozenset()

    def run(
        self, name: str, job: Mapping[str, Any], array: ArrayConfig, clock: RunClock, again: bool = False
    ) -> ClockRun:
        """Return the kept run of this job file's content on this array, or run it now and keep it.

        With `again` it is a second run of the same content, kept beside the first.

        Raises:
            EnvironmentUnfit: as `run_on_clock`.
        """
        folder = self.folder / f"{name}-{clock}-{run_key(job, array, clock)}{_AGAIN * again}"
        measured = folder / _MEASURED_FILE
        if measured.exists() and clock not in self.anew:
            said = json.loads(measured.read_text(encoding="utf-8"))
            return ClockRun(clock, folder / said["directory"], said["wall_seconds"], said["load_average"])
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(dict(job)), encoding="utf-8")
        done = run_on_clock(file, array, clock, folder, folder / "runs")
        said = {"directory": str(done.directory.absolute().relative_to(folder.absolute()))}
        said |= {"wall_seconds": done.wall_seconds, "load_average": done.load_average}
        measured.write_text(json.dumps(said), encoding="utf-8")
        return done


def run_key(job: Mapping[str, Any], array: ArrayConfig, clock: RunClock) -> str:
    """Return what tells runs of different content apart: job, array, clock, and the code of the agent."""
    content = json.dumps([job, array_on_clock(array, clock), agent_sha256()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def agent_sha256() -> str:
    """Return the hash of the agent's source files, which decide what a virtual machine counts."""
    top, found = Path(firmware_agent.__file__).parent, hashlib.sha256()
    for path in sorted(top.rglob("*.py")):
        found.update(f"{path.relative_to(top)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()

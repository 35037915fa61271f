"""Does a run whose host was killed end with the weights of one that was not?"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from csd_emu.paths import HOME_VARIABLE, Paths
from csd_emu.progress import Progress
from firmware_agent.errors import CsdError, DeviceError
from host.arrays import sweep
from host.bench.harness import report
from host.files import PARTIAL
from host.interrupts import INTERRUPTS
from host.outputs import BenchReport
from host.requests import DEFAULT_DATA
from host.run_directory import CHECKPOINT_FILE, JOB_FILE, RECORDS_FILE, WEIGHTS_FILE

TRIALS = 20
DEVICES, ROUNDS = 3, 5
# Where a host is killed; the trials take them by turns.
POINTS = ("start-up", "round", "checkpoint", "end")
# One array is started and ended by its runs, the other one is up all the time.
OWN, KEPT = "bench-resume", "bench-resume-up"
# Wall time after which a run that says nothing counts as hung.
_WATCHDOG_SECONDS = 300.0
_PROGRAM = [sys.executable, "-P", "-m", "host"]
_LOOK_SECONDS = 0.0002


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Kill the host of a native run with SIGKILL at 20 random points, resume it, and compare the final weights.

    Figure: `identical_weights`, the share of runs whose final weights are those of an uninterrupted run to the bit.
    """
    generator = random.Random(seed)
    with _laboratory(seed) as lab:
        lab.command("up", lab.files[KEPT], "--job", lab.job)
        for array in (OWN, KEPT):
            progress.stage(f"uninterrupted run on {array}")
            lab.measure(array)
        trials = []
        for number in range(TRIALS):
            point, array = POINTS[number % len(POINTS)], (OWN, KEPT)[number // len(POINTS) % 2]
            progress.stage(f"run {number + 1} of {TRIALS}: killed in {point}, then resumed")
            trials.append(lab.trial(number, point, array, generator))
    share = sum(trial["identical"] for trial in trials) / TRIALS
    samples = {"trials": trials, "uninterrupted_seconds": lab.seconds}
    return report("resume", "wall", seed, {"identical_weights": share}, samples, engine="native")


class _Lab:
    """Folders, files and commands of one bench; the reference that all runs are compared with."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seconds: dict[str, dict[str, float]] = {}
        self._weights: bytes | None = None
        self._environment = os.environ | {HOME_VARIABLE: str(folder / "home")}
        job = {"model": "digits_cnn", "data": DEFAULT_DATA.model_dump(), "rounds": ROUNDS, "seed": seed}
        self.job = self._write("job.yaml", job | {"strategy": "fedadam", "participation": {"count": DEVICES - 1}})
        devices = [{"profile": "newport", "count": DEVICES}]
        self.files = {
            name: self._write(f"{name}.yaml", {"name": name, "engine": "native", "devices": devices})
            for name in (OWN, KEPT)
        }

    def measure(self, array: str) -> None:
        """Run once without a fault: take its weights, and how long its parts last."""
        runs = self.folder / f"reference-{array}"
        begin = time.monotonic()
        with self._start("run", self.job, "--array", self.files[array], "--runs", runs) as process:
            _wait(process, lambda: _records(runs) >= 1)
            first = time.monotonic()
            _wait(process, lambda: _records(runs) >= ROUNDS)
            last = time.monotonic()
            if process.wait(_WATCHDOG_SECONDS) != 0:
                raise DeviceError("the uninterrupted run failed; csd-emu run of the quickstart says why")
        self.seconds[array] = {
            "start-up": first - begin,
            "round": (last - first) / (ROUNDS - 1),
            "end": time.monotonic() - last,
        }
        weights = _weights(runs)
        if self._weights not in (None, weights):
            raise DeviceError("two uninterrupted runs end with different weights, so nothing can be compared")
        self._weights = weights

    def trial(self, number: int, point: str, array: str, generator: random.Random) -> dict[str, Any]:
        """Kill one run at a random moment of `point`, resume it, and say whether its weights are the reference's."""
        runs = self.folder / f"trial-{number}"
        arguments = ("run", self.job, "--array", self.files[array], "--runs", runs)
        rounds, fraction = generator.randrange(1, ROUNDS), generator.random()
        with self._start(*arguments) as process:
            self._await(process, runs, point, rounds, fraction, self.seconds[array])
            process.send_signal(signal.SIGKILL)
            killed = process.wait() == -signal.SIGKILL
            if process.returncode > 0:
                raise DeviceError(f"a run failed with {process.returncode} before it was killed, in {point}")
        left = self._look(runs)
        directory = left.pop("directory")
        done = self.command(*(("run", "--resume", directory) if directory is not None else arguments), check=False)
        identical = done.returncode == 0 and _weights(runs) == self._weights
        words = "" if done.returncode == 0 else done.stderr.decode(errors="replace")[-500:]
        aim = {"point": point, "array": array, "round": rounds, "fraction": fraction}
        return aim | left | {"killed": killed} | {"exit_code": done.returncode, "error": words, "identical": identical}

    def command(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        """Run a command of csd-emu to its end."""
        command = [*_PROGRAM, *map(str, arguments)]
        done = subprocess.run(command, env=self._environment, capture_output=True, timeout=_WATCHDOG_SECONDS)
        if check and done.returncode != 0:
            raise DeviceError(f"csd-emu {arguments[0]} failed: {done.stderr.decode(errors='replace')[-500:]}")
        return done

    def end(self) -> None:
        """End all devices."""
        with INTERRUPTS.deferred(), contextlib.suppress(CsdError):
            home = self.folder / "home"
            sweep([OWN, KEPT], Paths(home / "cache", home / "state", home / "run"))

    @staticmethod
    def _await(
        process: subprocess.Popen[bytes],
        runs: Path,
        point: str,
        rounds: int,
        fraction: float,
        seconds: Mapping[str, float],
    ) -> None:
        """Return at the moment at which the host is to be killed; it may have ended before."""
        if point == "start-up":
            return _pause(process, fraction * seconds["start-up"])
        if point == "checkpoint":
            _wait(process, lambda: _records(runs) >= rounds)
            return _wait(process, lambda: _partial(runs))
        _wait(process, lambda: _records(runs) >= (ROUNDS if point == "end" else rounds))
        return _pause(process, fraction * seconds[point])

    def _look(self, runs: Path) -> dict[str, Any]:
        """Return what the killed host left: nothing can be resumed before its configuration is written."""
        directory = _directory(runs)
        if directory is not None and not (directory / JOB_FILE).exists():
            directory = None
        return {
            "directory": directory,
            "resumed": directory is not None,
            "rounds_recorded": _records(runs),
            "checkpoint": directory is not None and (directory / CHECKPOINT_FILE).exists(),
            "checkpoint_cut_short": _partial(runs),
        }

    def _write(self, name: str, content: dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    @contextlib.contextmanager
    def _start(self, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command; it does not outlive the block."""
        command = [*_PROGRAM, *map(str, arguments)]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=self._environment) as process:
            try:
                yield process
            finally:
                process.kill()


@contextlib.contextmanager
def _laboratory(seed: int) -> Iterator[_Lab]:
    """Have a lab whose folder and devices are gone after the block."""
    with tempfile.TemporaryDirectory(prefix="csd-emu-bench-") as folder:
        lab = _Lab(Path(folder), seed)
        try:
            yield lab
        finally:
            lab.end()


def _wait(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Return when the condition holds, or the process has ended."""
    end = time.monotonic() + _WATCHDOG_SECONDS
    while not condition() and process.poll() is None:
        if time.monotonic() > end:
            raise DeviceError(f"a run did nothing for {_WATCHDOG_SECONDS:.0f} s of wall time")
        time.sleep(_LOOK_SECONDS)


def _pause(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _directory(runs: Path) -> Path | None:
    """Return the newest run directory, if there is one: a run that could not be resumed was begun anew."""
    return max(runs.iterdir(), default=None) if runs.is_dir() else None


def _weights(runs: Path) -> bytes | None:
    directory = _directory(runs)
    path = directory / WEIGHTS_FILE if directory is not None else None
    return path.read_bytes() if path is not None and path.exists() else None


def _records(runs: Path) -> int:
    """Return how many rounds the records hold."""
    directory = _directory(runs)
    path = directory / RECORDS_FILE if directory is not None else None
    lines = path.read_bytes().split(b"\n")[:-1] if path is not None and path.exists() else []
    return sum(line.startswith(b'{"kind":"round"') for line in lines)


def _partial(runs: Path) -> bool:
    """Return whether a checkpoint is being written, or was when the host was killed."""
    directory = _directory(runs)
    return directory is not None and (directory / (CHECKPOINT_FILE + PARTIAL)).exists()

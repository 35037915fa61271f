"""Growth of a run that never ends: eight native drives, two of them dying and rejoining all the time."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import HOME_VARIABLE, Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.endurance.trend import trend
from csd_lab.bench.harness import report
from firmware_agent.common.errors import ConfigurationError, DeviceError, EnvironmentUnfit
from host.monitoring.run_directory import RECORDS_FILE

MINUTES = 60.0
DRIVES, DYING = 8, 2
ARRAY = "bench-soak"
# A growth that is certain may be so much of the whole in an hour.
ALLOWED_PER_HOUR = 0.01
_HOUR_SECONDS = 3600.0
_LOOK_SECONDS = 0.1
_PAUSE_SECONDS = 1.0
_WATCHDOG_SECONDS = 300.0
_PROGRAM = [sys.executable, "-P", "-m", "host"]
_ROUND = b'{"kind":"round"'
# Samples kept of a day and more.
MOST_SAMPLES = 200_000
SERIES = {"memory": "memory_bytes", "open_files": "open_files", "threads": "threads", "round_bytes": "round_bytes"}


def run(paths: Paths, progress: Progress, seed: int, minutes: float | None = None) -> BenchReport:
    """Train for an hour, or `minutes`, while two drives die and rejoin, and look at the host after every round.

    Figures: for `memory` (resident bytes of the host process), `open_files`, `threads` and `round_bytes` (by how much
    the run directory has grown in a round) the slope as a share of the median per hour, `..._per_hour`, with its 95 %
    interval `..._per_hour_low` and `..._per_hour_high` (see `csd_lab.bench.endurance.trend`); `growing`: how many of
    them certainly grow by more than 1 % an hour; `rounds`, `deaths`: how many there were; `ended_well`: 1 if the run
    ended by itself when it was asked to.
    """
    seconds = 60.0 * (MINUTES if minutes is None else minutes)
    with tempfile.TemporaryDirectory(prefix="csd-emu-bench-") as folder:
        lab = _Lab(Path(folder), seed)
        with lab.training() as process:
            samples, deaths = lab.watch(process, seconds, progress)
            ended = lab.end(process)
    if len(samples) < 2:
        raise DeviceError("bench soak: fewer than two rounds ended; run it for longer")
    figures = judge(samples) | {"rounds": float(len(samples)), "deaths": float(deaths), "ended_well": float(ended)}
    return report("soak", "wall", seed, figures, {"minutes": seconds / 60.0, "rounds": thin(samples)}, "native")


def judge(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the figures of samples of one round each: what `SERIES` names, and `seconds` since the first.

    Raises:
        ConfigurationError: there are too few.
    """
    figures: dict[str, float] = {}
    growing = 0
    hours = [sample["seconds"] / _HOUR_SECONDS for sample in samples]
    rounds_per_hour = (len(samples) - 1) / max(hours[-1] - hours[0], 1e-9)
    for name, key in SERIES.items():
        values = [sample[key] for sample in samples]
        middle = statistics.median(values) or 1.0
        try:
            # Over rounds, for that is what leaks; told per hour, so that it can be held against the limit.
            found = trend(range(len(values)), values).scaled(rounds_per_hour / middle)
        except ValueError as error:
            raise ConfigurationError(f"bench soak: {error}") from error
        growing += found.grows(ALLOWED_PER_HOUR)
        figures |= {
            f"{name}_per_hour": found.slope,
            f"{name}_per_hour_low": found.low,
            f"{name}_per_hour_high": found.high,
        }
    return figures | {"growing": float(growing)}


def thin(samples: Sequence[Mapping[str, float]], most: int = 2000) -> list[Mapping[str, float]]:
    """Return at most so many samples, evenly, for the report."""
    return list(samples[:: -(-len(samples) // most)])


class _Lab:
    """A run that is told to train for ever, and what is done to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._runs = folder, folder / "runs"
        self._environment = os.environ | {HOME_VARIABLE: str(folder / "home")}
        data = {"source": "digits", "private": 0.3}
        job = {"model": "digits_cnn", "mode": "sync", "data": data, "rounds": 1_000_000, "batch_size": 16}
        job |= {"tuner": "none", "seed": seed, "sync": {"round_steps": 2}}
        self._job = self._write("job.yaml", job)
        devices = [{"profile": "newport", "count": DRIVES}]
        self._array = self._write("array.yaml", {"name": ARRAY, "engine": "native", "devices": devices})

    @contextlib.contextmanager
    def training(self) -> Iterator[subprocess.Popen[bytes]]:
        """Have the run; its drives are gone after the block."""
        arguments = ("run", str(self._job), "--array", str(self._array), "--runs", str(self._runs))
        with (
            open(self._folder / "run.log", "wb") as log,
            subprocess.Popen(
                [*_PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()
                process.wait()
                self._command("sweep", ARRAY)

    def watch(
        self, process: subprocess.Popen[bytes], seconds: float, progress: Progress
    ) -> tuple[list[dict[str, float]], int]:
        """Return a sample of each round, and how often a drive died."""
        progress.stage("drives start")
        self._await_round(process)
        done, deaths = threading.Event(), [0]
        harm = threading.Thread(target=self._harm, args=(done, deaths), daemon=True)
        harm.start()
        progress.stage(f"{DRIVES} drives train, {DYING} of them die and rejoin")
        try:
            samples = self._sample(process, seconds, progress)
        finally:
            done.set()
            harm.join(_WATCHDOG_SECONDS)
        return samples, deaths[0]

    def end(self, process: subprocess.Popen[bytes]) -> bool:
        """Ask the run to end, and return whether it does."""
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(_WATCHDOG_SECONDS) in (0, 1, 130)
        except subprocess.TimeoutExpired:
            return False

    def _sample(self, process: subprocess.Popen[bytes], seconds: float, progress: Progress) -> list[dict[str, float]]:
        host, begin, samples = psutil.Process(process.pid), time.monotonic(), list[dict[str, float]]()
        counter, before = _RoundCounter(self._records()), self._bytes()
        quiet = Deadline(_WATCHDOG_SECONDS)
        while (now := time.monotonic() - begin) < seconds:
            if process.poll() is not None or quiet.expired:
                raise self._failed()
            if new := counter.count():
                quiet, size = Deadline(_WATCHDOG_SECONDS), self._bytes()
                with host.oneshot():
                    sample = {"memory_bytes": float(host.memory_info().rss), "threads": float(host.num_threads())}
                sample |= {"open_files": float(host.num_fds()), "round_bytes": (size - before) / new, "seconds": now}
                before = size
                samples.append(sample)
                if len(samples) > MOST_SAMPLES:
                    samples = samples[::2]
            progress.advance(now / seconds)
            time.sleep(_LOOK_SECONDS)
        return samples

    def _harm(self, done: threading.Event, deaths: list[int]) -> None:
        """Kill and revive the last two drives by turns, until `done`."""
        for name in itertools.cycle([f"csd-{number:02d}" for number in range(DRIVES - DYING, DRIVES)]):
            for fault in ("kill", "revive"):
                if done.wait(_PAUSE_SECONDS):
                    return
                if self._command("inject", ARRAY, name, fault) == 0 and fault == "kill":
                    deaths[0] += 1

    def _command(self, *arguments: str) -> int:
        quiet = subprocess.DEVNULL
        command = [*_PROGRAM, *arguments]
        return subprocess.run(command, stdout=quiet, stderr=quiet, env=self._environment, check=False).returncode

    def _await_round(self, process: subprocess.Popen[bytes]) -> None:
        deadline = Deadline(_WATCHDOG_SECONDS)
        while not any(self._runs.glob(f"*/{RECORDS_FILE}")) or _ROUND not in self._records().read_bytes():
            if process.poll() is not None or deadline.expired:
                raise self._failed()
            time.sleep(_LOOK_SECONDS)

    def _records(self) -> Path:
        return next(self._runs.glob(f"*/{RECORDS_FILE}"))

    def _bytes(self) -> int:
        total = 0
        for path in self._records().parent.rglob("*"):
            with contextlib.suppress(OSError):  # a checkpoint that is being replaced
                total += path.stat().st_size if path.is_file() else 0
        return total

    def _failed(self) -> EnvironmentUnfit:
        words = (self._folder / "run.log").read_text(errors="replace").strip().splitlines() or ["without a word"]
        return EnvironmentUnfit(f"bench soak: the run ended, or no round did for long: {words[-1][:500]}")

    def _write(self, name: str, content: dict[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path


class _RoundCounter:
    """Counts the rounds of a file of records that grows, reading each byte once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, path.stat().st_size

    def count(self) -> int:
        """Return how many have ended since the last call."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return sum(line.startswith(_ROUND) for line in whole.splitlines())

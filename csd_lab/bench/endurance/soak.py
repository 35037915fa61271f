"""Growth of a run that does not end: `csd-emu bench soak`, and the trend of a series."""

from __future__ import annotations

import contextlib
import itertools
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from scipy.stats import theilslopes

from csd_emu.util.deadline import Deadline
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.command_lab import ROUND, CommandLab, count_rounds, newest
from csd_lab.bench.harness import Bench, temporary_folder
from firmware_agent.common.errors import ConfigurationError, DeviceError
from host.monitoring.run_directory import RECORDS_FILE

BLOCKS = 24
# What comes before is warming up: imports, pools of memory, the first of everything.
WARM_UP = 0.25
LEAST_SAMPLES = 12


@dataclass(frozen=True)
class Trend:
    """A slope, and the ends of its 95 % interval."""

    slope: float
    low: float
    high: float

    def scaled(self, factor: float) -> Trend:
        """Return it in another unit; `factor` is positive."""
        return Trend(factor * self.slope, factor * self.low, factor * self.high)

    def grows(self, allowed: float) -> bool:
        """Return whether growth is certain and more than `allowed`: the interval is above 0, and reaches beyond it."""
        return self.low > 0.0 and self.high > allowed


def trend(x: Sequence[float], y: Sequence[float], blocks: int = BLOCKS) -> Trend:
    """Return a robust slope of a long series with its 95 % interval, warming up left out.

    Theil and Sen's slope is the median of the slopes between all pairs, and its interval comes from Kendall's variance
    (Sen, JASA 1968, section 3): a few spikes do not move it, and no distribution is assumed. It does assume independent
    errors, which memory and files do not have from one round to the next; so the series is cut into blocks of equal
    length first, and each counts by its median: over a minute and more what is left of the dependence is small. The
    interval of least squares with Newey and West's variance was considered: it needs many more blocks until it holds
    what it promises.

    Raises:
        ValueError: it is too short to be judged.
    """
    skipped = round(WARM_UP * len(x))
    kept_x, kept_y = list(x)[skipped:], list(y)[skipped:]
    if len(kept_x) < LEAST_SAMPLES:
        raise ValueError(f"{len(x)} samples are too few for a trend; run for longer")
    size = max(1, len(kept_x) // min(blocks, len(kept_x)))
    starts = range(0, len(kept_x) - size + 1, size)
    means = [statistics.fmean(kept_x[start : start + size]) for start in starts]
    found = theilslopes([statistics.median(kept_y[start : start + size]) for start in starts], means)
    return Trend(float(found.slope), float(found.low_slope), float(found.high_slope))


MINUTES = 60.0
DRIVES, DYING = 8, 2
ARRAY = "bench-soak"
# A growth that is certain may be so much of the whole in an hour.
ALLOWED_PER_HOUR = 0.01
_HOUR_SECONDS = 3600.0
_LOOK_SECONDS = 0.1
_PAUSE_SECONDS = 1.0
_QUIET_SECONDS = 300.0
_HOME = "one"
# Samples kept of a day and more.
MOST_SAMPLES = 200_000
SERIES = {"memory": "memory_bytes", "open_files": "open_files", "threads": "threads", "round_bytes": "round_bytes"}


def bench_soak(bench: Bench, minutes: float | None = None) -> BenchReport:
    """Growth of a run that never ends: eight native drives, two of them dying and rejoining all the time.

    Train for an hour, or `minutes`, while two drives die and rejoin, and look at the host after every round.

    Figures: for `memory` (resident bytes of the host process), `open_files`, `threads` and `round_bytes` (by how much
    the run directory has grown in a round) the slope as a share of the median per hour, `..._per_hour`, with its 95 %
    interval `..._per_hour_low` and `..._per_hour_high` (see `trend`); `growing`: how many of
    them certainly grow by more than 1 % an hour; `rounds`, `deaths`: how many there were; `ended_well`: 1 if the run
    ended by itself when it was asked to.
    """
    seconds = 60.0 * (MINUTES if minutes is None else minutes)
    with temporary_folder() as folder, _SoakLab("soak", folder) as lab:
        process = lab.train(bench.seed)
        samples, deaths = lab.watch(process, seconds, bench)
        process.send_signal(signal.SIGINT)
        ended = lab.end(process) in (0, 1, 130)
    if len(samples) < 2:
        raise DeviceError("bench soak: fewer than two rounds ended; run it for longer")
    figures = judge(samples) | {"rounds": float(len(samples)), "deaths": float(deaths), "ended_well": float(ended)}
    return bench.report("wall", figures, {"minutes": seconds / 60.0, "rounds": thin(samples)}, "native")


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


class _SoakLab(CommandLab):
    """A run that is told to train for ever, and what is done to it."""

    def train(self, seed: int) -> subprocess.Popen[bytes]:
        """Start the run."""
        data = {"source": "digits", "private": 0.3}
        job = {"model": "digits_cnn", "mode": "sync", "data": data, "rounds": 1_000_000, "batch_size": 16}
        job |= {"tuner": "none", "seed": seed, "sync": {"round_steps": 2}}
        devices = [{"profile": "newport", "count": DRIVES}]
        array = self.write("array.yaml", {"name": ARRAY, "engine": "native", "devices": devices})
        return self.start(_HOME, "run", self.write("job.yaml", job), "--array", array, "--runs", self.folder / "runs")

    def watch(
        self, process: subprocess.Popen[bytes], seconds: float, bench: Bench
    ) -> tuple[list[dict[str, float]], int]:
        """Return a sample of each round, and how often a drive died."""
        bench.progress.stage("drives start")
        if not self.wait(process, lambda: count_rounds(self._directory) >= 1, _LOOK_SECONDS):
            raise self.failed("the run ended")
        done, deaths = threading.Event(), [0]
        harm = threading.Thread(target=self._harm, args=(done, deaths), daemon=True)
        harm.start()
        bench.progress.stage(f"{DRIVES} drives train, {DYING} of them die and rejoin")
        try:
            samples = self._sample(process, seconds, bench)
        finally:
            done.set()
            harm.join(_QUIET_SECONDS)
        return samples, deaths[0]

    def _sample(self, process: subprocess.Popen[bytes], seconds: float, bench: Bench) -> list[dict[str, float]]:
        host, begin, samples = psutil.Process(process.pid), time.monotonic(), list[dict[str, float]]()
        counter, before = _RoundCounter(self._directory / RECORDS_FILE), self._bytes()
        quiet = Deadline(_QUIET_SECONDS)
        while (now := time.monotonic() - begin) < seconds:
            if process.poll() is not None or quiet.expired:
                raise self.failed("the run ended, or no round did for long")
            if new := counter.count():
                quiet, size = Deadline(_QUIET_SECONDS), self._bytes()
                with host.oneshot():
                    sample = {"memory_bytes": float(host.memory_info().rss), "threads": float(host.num_threads())}
                sample |= {"open_files": float(host.num_fds()), "round_bytes": (size - before) / new, "seconds": now}
                before = size
                samples.append(sample)
                if len(samples) > MOST_SAMPLES:
                    samples = samples[::2]
            bench.progress.advance(now / seconds)
            time.sleep(_LOOK_SECONDS)
        return samples

    def _harm(self, done: threading.Event, deaths: list[int]) -> None:
        """Kill and revive the last two drives by turns, until `done`."""
        for name in itertools.cycle([f"csd-{number:02d}" for number in range(DRIVES - DYING, DRIVES)]):
            for fault in ("kill", "revive"):
                if done.wait(_PAUSE_SECONDS):
                    return
                if self.run(_HOME, "inject", ARRAY, name, fault) == 0 and fault == "kill":
                    deaths[0] += 1

    @property
    def _directory(self) -> Path:
        return newest(self.folder / "runs")

    def _bytes(self) -> int:
        total = 0
        for path in self._directory.rglob("*"):
            with contextlib.suppress(OSError):  # a checkpoint that is being replaced
                total += path.stat().st_size if path.is_file() else 0
        return total


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
        return sum(line.startswith(ROUND) for line in whole.splitlines())

"""Does Prometheus answer what the run record says, however busy this machine is?"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from csd_emu.array import ArrayConfig, HostSection
from csd_emu.paths import Paths
from csd_emu.power import sum_energy
from csd_emu.progress import Progress
from firmware_agent.errors import EnvironmentUnfit
from firmware_agent.models import ModelSpec
from host.bench.harness import bench_config, bench_job, cpu_hogs, report
from host.bench.prometheus import Prometheus, free_port, run_prometheus
from host.job import JobConfig
from host.metrics.queries import IMAGES_PER_DEVICE_SECOND, JOULES, JOULES_PER_IMAGE, WATTS, Query
from host.outputs import BenchReport
from host.records import RoundRecord, decode_record
from host.run import run_job
from host.run_request import check_run

DEVICES = 3
ROUNDS = 6
# Windows of this share of the run, and how many of them.
WINDOW_SHARE, WINDOWS = 0.4, 7
_LONG = "1h"

Recorded = Mapping[str, float]


@dataclass(frozen=True)
class Answer:
    """What Prometheus said of rounds `first` to `last`, and the run record; `answered` is NaN if it said nothing."""

    quantity: str
    device: str
    first_round: int
    last_round: int
    answered: float
    recorded: float

    @property
    def error(self) -> float:
        """Return |answered / recorded - 1|, 1 for no answer."""
        return 1.0 if math.isnan(self.answered) else abs(self.answered / self.recorded - 1)


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Have Prometheus scrape a run on 3 VMs every second while hogs keep all cores busy, and question it afterwards.

    Figure: `worst_error`, relative, over images per device second and watts of every drive, joules per image, and
    joules of every drive and the host, in windows of all and of parts of the run.
    """
    config = bench_config("metrics", DEVICES)
    job = bench_job(seed).model_copy(update={"rounds": ROUNDS})
    with tempfile.TemporaryDirectory(prefix="csd-bench-") as folder, cpu_hogs(os.cpu_count() or 1):
        answers, wall = scrape_run(config, job, paths, progress, Path(folder))
    samples: dict[str, Any] = {
        "answers": [asdict(answer) | {"error": answer.error} for answer in answers],
        "images_per_wall_second_over_record": wall,
    }
    return report("metrics", "counted", seed, {"worst_error": max(answer.error for answer in answers)}, samples)


def scrape_run(
    config: ArrayConfig, job: JobConfig, paths: Paths, progress: Progress, folder: Path
) -> tuple[list[Answer], list[float]]:
    """Run a job while a Prometheus scrapes it; all files go into `folder`.

    Returns:
        What it answered afterwards, and what its images per *wall* second are as multiples of the record's images per
        device second: how wrong it is not to divide.

    Raises:
        CsdError: the run failed, or Prometheus did.
    """
    port = free_port()
    host = HostSection(profile=config.host.profile, metrics_port=port)
    request = check_run(config.model_copy(update={"host": host}), job, ModelSpec(job.model))
    with run_prometheus(folder, port) as prometheus:
        summary = run_job(request, paths, folder / "runs", progress, quiet=True)
        rounds = read_rounds(Path(summary.run_directory))
        windows = list(list_windows(prometheus, time.time(), len(rounds)))
        answers = [answer for window in windows for answer in ask(prometheus, window, rounds)]
        wall = [share for window in windows for share in _wall_shares(prometheus, window, rounds)]
    return answers, wall


def read_rounds(directory: Path) -> list[RoundRecord]:
    """Return the rounds of a run directory."""
    lines = (directory / "records.jsonl").read_bytes().splitlines()
    records = [decode_record(line) for line in lines]
    return [record for record in records if isinstance(record, RoundRecord)]


@dataclass(frozen=True)
class Window:
    """A range that Prometheus is asked about, and the rounds that ended in it."""

    end_seconds: float
    length: str
    before_round: int
    last_round: int

    def of(self, rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
        """Return the rounds that ended in the window."""
        return [record for record in rounds if self.before_round < record.round <= self.last_round]


def list_windows(prometheus: Prometheus, now_seconds: float, rounds: int) -> Iterator[Window]:
    """Yield a window over all `rounds` of the run, whatever of it was scraped, and windows over parts.

    Raises:
        EnvironmentUnfit: nothing was scraped.
    """
    seen = prometheus.samples("csd_round", _LONG, now_seconds)
    if not seen:
        raise EnvironmentUnfit("Prometheus has scraped nothing of the run; run it again on a less busy machine")
    begin, end = seen[0][0], seen[-1][0]
    yield Window(end, _milliseconds(end - begin + 1.0), 0, rounds)
    part = (end - begin) * WINDOW_SHARE
    length = _milliseconds(part)
    for step in range(WINDOWS):
        last = begin + part + (end - begin - part) * step / (WINDOWS - 1)
        inside = prometheus.samples("csd_round", length, last)
        if inside and inside[0][1] < inside[-1][1]:
            yield Window(last, length, int(inside[0][1]), int(inside[-1][1]))


def _milliseconds(seconds: float) -> str:
    return f"{math.ceil(seconds * 1000)}ms"


def ask(prometheus: Prometheus, window: Window, rounds: Sequence[RoundRecord]) -> Iterator[Answer]:
    """Yield what Prometheus answers of a window, beside what the rounds that ended in it say."""
    inside = window.of(rounds)
    yield from _compare(prometheus, "images_per_device_second", IMAGES_PER_DEVICE_SECOND, window, rates(inside))
    yield from _compare(prometheus, "watts", WATTS, window, watts(inside))
    yield from _compare(prometheus, "joules_per_image", JOULES_PER_IMAGE, window, joules_per_image(inside))
    so_far = [record for record in rounds if record.round <= window.last_round]
    yield from _compare(prometheus, "joules", JOULES, window, joules(so_far))


def rates(rounds: Sequence[RoundRecord]) -> Recorded:
    """Return images per device second of each drive that computed."""
    samples: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for part in (part for record in rounds for part in record.devices):
        samples[part.device] = samples.get(part.device, 0) + part.samples
        seconds[part.device] = seconds.get(part.device, 0.0) + part.device_seconds.total
    return {device: samples[device] / value for device, value in seconds.items() if value}


def joules(rounds: Sequence[RoundRecord]) -> Recorded:
    """Return joules of each drive and of the host."""
    nodes: list[Mapping[str, float]] = []
    for record in rounds:
        nodes.append({part.device: sum(part.energy_joules.values()) for part in record.devices})
        nodes.append({node: sum(parts.values()) for node, parts in record.energy_joules.items()})
    return sum_energy(nodes)


def watts(rounds: Sequence[RoundRecord]) -> Recorded:
    """Return mean watts of each drive and of the host."""
    seconds = sum(record.array_seconds for record in rounds)
    return {node: value / seconds for node, value in joules(rounds).items()}


def joules_per_image(rounds: Sequence[RoundRecord]) -> Recorded:
    """Return joules of everything per image, under an empty name."""
    samples = sum(part.samples for record in rounds for part in record.devices)
    return {"": sum(record.total_joules for record in rounds) / samples}


def _compare(
    prometheus: Prometheus, quantity: str, query: Query, window: Window, recorded: Recorded
) -> Iterator[Answer]:
    answered = prometheus.value(query.over(window.length), window.end_seconds, "device")
    for device, value in recorded.items():
        given = answered.get(device, math.nan)
        yield Answer(quantity, device, window.before_round + 1, window.last_round, given, value)


def _wall_shares(prometheus: Prometheus, window: Window, rounds: Sequence[RoundRecord]) -> list[float]:
    query = f"sum by (device) (rate(csd_train_samples_total[{window.length}]))"
    answered = prometheus.value(query, window.end_seconds, "device")
    return [answered[device] / value for device, value in rates(window.of(rounds)).items() if device in answered]

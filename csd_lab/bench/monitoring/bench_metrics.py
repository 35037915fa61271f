"""Agreement of Prometheus' answers with the run record, however busy this machine is."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from csd_emu.config.array_file import ArrayConfig, HostSection
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.command_lab import read_rounds
from csd_lab.bench.harness import Bench, array_of, bench_job, cpu_hogs, request_run, temporary_folder
from csd_lab.generate.promql_queries import JOULES, JOULES_PER_RECORD, RECORDS_PER_DEVICE_SECOND, WATTS, Query
from csd_lab.testkit.prometheus import Prometheus, free_port, run_prometheus
from firmware_agent.common.errors import EnvironmentUnfit
from host.app.run_job import NewRun, run_job
from host.config.job_file import JobConfig
from host.core.records import RoundRecord
from host.core.run_stats import RunStats

DEVICES = 3
ROUNDS = 6
# Windows of this share of the run, and how many of them.
WINDOW_SHARE, WINDOWS = 0.4, 7
_LONG = "1h"

Recorded = Mapping[str, float]


@dataclass(frozen=True)
class QueryResult:
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


def bench_metrics(bench: Bench) -> BenchReport:
    """Agreement of Prometheus' answers with the run record, however busy this machine is.

    Have Prometheus scrape a run on 3 VMs every second while hogs keep all cores busy, and question it afterwards.

    Figure: `worst_error`, relative, over records per device second and watts of every drive, joules per record, and
    joules of every drive and the host, in windows of all and of parts of the run.
    """
    config, job = array_of(bench.name, DEVICES), bench_job(bench.seed).model_copy(update={"rounds": ROUNDS})
    with temporary_folder() as folder, cpu_hogs(os.cpu_count() or 1):
        answers, wall = scrape_run(config, job, bench.paths, bench.progress, folder)
    samples: dict[str, Any] = {
        "answers": [asdict(answer) | {"error": answer.error} for answer in answers],
        "records_per_wall_second_over_recorded": wall,
    }
    return bench.report("counted", {"worst_error": max(answer.error for answer in answers)}, samples)


def scrape_run(
    config: ArrayConfig, job: JobConfig, paths: Paths, progress: Progress, folder: Path
) -> tuple[list[QueryResult], list[float]]:
    """Run a job while a Prometheus scrapes it; all files go into `folder`.

    Returns:
        What it answered afterwards, and what its records per *wall* second are as multiples of the rate per
        device second in the run record: how wrong it is not to divide.

    Raises:
        CsdError: the run failed, or Prometheus did.
    """
    port = free_port()
    host = HostSection(profile=config.host.profile, metrics_port=port)
    request = request_run(config.model_copy(update={"host": host}), job)
    with run_prometheus(folder, port) as prometheus:
        summary = run_job(request, paths, NewRun(folder / "runs"), progress, quiet=True)
        rounds = read_rounds(Path(summary.run_directory))
        windows = list(list_windows(prometheus, time.time(), len(rounds)))
        answers = [answer for window in windows for answer in ask(prometheus, window, rounds)]
        wall = [share for window in windows for share in _wall_shares(prometheus, window, rounds)]
    return answers, wall


@dataclass(frozen=True)
class QueryWindow:
    """A range that Prometheus is asked about, and the rounds that ended in it."""

    end_seconds: float
    length: str
    before_round: int
    last_round: int

    def of(self, rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
        """Return the rounds that ended in the window."""
        return [record for record in rounds if self.before_round < record.round <= self.last_round]


def list_windows(prometheus: Prometheus, now_seconds: float, rounds: int) -> Iterator[QueryWindow]:
    """Yield a window over all `rounds` of the run, whatever of it was scraped, and windows over parts.

    Raises:
        EnvironmentUnfit: nothing was scraped.
    """
    seen = prometheus.samples("csd_round", _LONG, now_seconds)
    if not seen:
        raise EnvironmentUnfit("Prometheus has scraped nothing of the run; run it again on a less busy machine")
    begin, end = seen[0][0], seen[-1][0]
    yield QueryWindow(end, _milliseconds(end - begin + 1.0), 0, rounds)
    part = (end - begin) * WINDOW_SHARE
    length = _milliseconds(part)
    for step in range(WINDOWS):
        last = begin + part + (end - begin - part) * step / (WINDOWS - 1)
        inside = prometheus.samples("csd_round", length, last)
        if inside and inside[0][1] < inside[-1][1]:
            yield QueryWindow(last, length, int(inside[0][1]), int(inside[-1][1]))


def _milliseconds(seconds: float) -> str:
    return f"{math.ceil(seconds * 1000)}ms"


def ask(prometheus: Prometheus, window: QueryWindow, rounds: Sequence[RoundRecord]) -> Iterator[QueryResult]:
    """Yield what Prometheus answers of a window, beside what the rounds that ended in it say."""
    inside = window.of(rounds)
    yield from _compare(prometheus, "records_per_device_second", RECORDS_PER_DEVICE_SECOND, window, rates(inside))
    yield from _compare(prometheus, "watts", WATTS, window, watts(inside))
    yield from _compare(prometheus, "joules_per_record", JOULES_PER_RECORD, window, joules_per_record(inside))
    so_far = [record for record in rounds if record.round <= window.last_round]
    yield from _compare(prometheus, "joules", JOULES, window, joules(so_far))


def rates(rounds: Sequence[RoundRecord]) -> Recorded:
    """Return records per device second of each drive that computed."""
    stats = RunStats.of(rounds)
    return {name: stats.devices[name].samples / seconds for name, seconds in stats.device_seconds.items() if seconds}


def joules(rounds: Sequence[RoundRecord]) -> Recorded:
    """Return joules of each drive and of the host."""
    return {node: sum(components.values()) for node, components in RunStats.of(rounds).node_joules.items()}


def watts(rounds: Sequence[RoundRecord]) -> Recorded:
    """Return mean watts of each drive and of the host."""
    seconds = RunStats.of(rounds).array_seconds
    return {node: value / seconds for node, value in joules(rounds).items()}


def joules_per_record(rounds: Sequence[RoundRecord]) -> Recorded:
    """Return joules of everything per record, under an empty name."""
    stats = RunStats.of(rounds)
    return {"": stats.energy_joules / sum(device.samples for device in stats.devices.values())}


def _compare(
    prometheus: Prometheus, quantity: str, query: Query, window: QueryWindow, recorded: Recorded
) -> Iterator[QueryResult]:
    answered = prometheus.value(query.over(window.length), window.end_seconds, "device")
    for device, value in recorded.items():
        given = answered.get(device, math.nan)
        yield QueryResult(quantity, device, window.before_round + 1, window.last_round, given, value)


def _wall_shares(prometheus: Prometheus, window: QueryWindow, rounds: Sequence[RoundRecord]) -> list[float]:
    query = f"sum by (device) (rate(csd_train_samples_total[{window.length}]))"
    answered = prometheus.value(query, window.end_seconds, "device")
    return [answered[device] / value for device, value in rates(window.of(rounds)).items() if device in answered]

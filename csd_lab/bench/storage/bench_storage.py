"""Flash of a drive: how far the model is from closed forms, what it costs, and how the host's latency is protected."""

from __future__ import annotations

import copy
import hashlib
import statistics
import time
from typing import Any

import numpy as np

from csd_emu.perfmodel.flash.flash_drive import FAIR, HOST_FIRST, FlashDrive
from csd_emu.perfmodel.flash.flash_parameters import SECOND, FlashParameters, flash_ceiling
from csd_emu.perfmodel.flash.flash_queues import Columns, join, take
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import HostLoad, LoadGenerator
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, spread_over
from csd_lab.bench.storage.bench_protect import (
    CASES,
    DEVELOPMENT_SEEDS,
    FINAL_SEEDS,
    QUICK_SECONDS,
    SECONDS,
    play_protect,
    summarise_protect,
)
from csd_lab.bench.storage.closed_forms import greedy_write_amplification, mean_wait

LOADS = 0.3, 0.6, 0.8
PARTS, PROCESSES = 10, 2
# Pages that one erase frees, and over-provisioning.
COLLECTED = (64, 0.28), (64, 0.15), (256, 0.28), (256, 0.07)
DRIVES, IOPS, READ_SHARE = 8, 20_000.0, 0.7
ENGINE_BYTES, ENGINE_IOPS = 131_072, 200.0
DEVICE_SECONDS, WINDOWS = 5, 10
FAST = 2**52
"""Bytes per second of what does not count."""


def bench_storage(bench: Bench, quick: bool = False) -> BenchReport:
    """Compare the flash model with closed forms, and measure what it costs.

    With `--quick` fewer commands, two drives of the four, one device second, and the seeds of development.

    Figures: `queueing_error`: the largest relative error of the mean wait of M/D/1 queues on each die (at three loads),
    of the rates of random and of sequential reads at the ceiling, and of the write amplification of greedy collection
    under uniform writes (four drives). `model_cpu_seconds`: of one core, that the model takes per device second of 8
    drives one after another, each with 20,000 random commands of 4 KiB a second (70 % reads) and 26 MB/s read by its
    engine, all of it written for long, in ten windows a second; `model_cpu_seconds_host_first`: the same with the host
    first. `protect_kept`: share of device seconds in which the policy `protect` keeps the 99th percentile of the host's
    latency under a limit that the host alone keeps and training unthrottled (`protect_kept_unthrottled`) does not.
    `protect_rate`: training's rate over the best, of one rate for each level of the host's load, that keeps as many;
    `protect_rate_worst` case.

    The samples have each error, and a hash of all ends: the same seed has the same on any machine.
    """
    errors = dict[str, float]()
    bench.progress.stage("compare queues with closed forms")
    count = 100_000 if quick else 2_000_000
    for load in LOADS:
        errors[f"M/D/1, load {load}"] = queue_error(load, count, bench.seed)
    errors |= {f"reads of {pages} pages": read_error(pages, count // 10) for pages in (1, 128)}
    bench.progress.stage("compare garbage collection with its closed form")
    for size, over in COLLECTED if not quick else COLLECTED[:2]:
        errors[f"collection, {size} pages, {over}"] = collection_error(size, over, bench.seed)
    bench.progress.stage("measure what the model costs")
    costs, ends = dict[str, list[float]](), hashlib.sha256()
    for policy in (FAIR, HOST_FIRST):
        costs[policy] = model_costs(policy, bench.seed, 1 if quick else DEVICE_SECONDS, ends)
    figures = {
        "queueing_error": max(map(abs, errors.values())),
        "model_cpu_seconds": statistics.median(costs[FAIR]),
        "model_cpu_seconds_host_first": statistics.median(costs[HOST_FIRST]),
    }
    bench.progress.stage("protect the host's latency")
    rows = protect_rows(bench.seed, quick)
    figures |= summarise_protect(rows)
    samples: dict[str, Any] = {"errors": errors, "cpu_seconds": costs, "ends_sha256": ends.hexdigest(), "protect": rows}
    return bench.report("wall", figures, samples, "none")


def protect_rows(seed: int, quick: bool) -> list[dict[str, Any]]:
    """Return what came of the cases of `protect` that have something to protect."""
    seeds, seconds = (DEVELOPMENT_SEEDS, QUICK_SECONDS) if quick else (FINAL_SEEDS, SECONDS)
    chosen = [(kind, policy, seed + each, seconds) for each in seeds for kind, policy in CASES]
    with spread_over(PROCESSES) as spread:
        return [row for row in spread(play_protect, chosen) if row is not None]


def queue_error(load: float, commands: int, seed: int) -> float:
    """Return the relative error of the mean wait of reads whose dies are busy for the share `load`."""
    flash = FlashParameters(blocks_per_plane=32, channel_bytes_per_second=FAST, link_bytes_per_second=FAST)
    rate = load * flash.dies * SECOND / flash.read_ns
    generator = LoadGenerator(HostLoad(4096, flash.namespace_pages, iops=rate, seed=seed), flash)
    drive, total, count = FlashDrive(flash), 0, 0
    for part in range(1, PARTS + 1):
        until = int(commands / rate * SECOND * part / PARTS)
        ended = drive.serve(generator.take_until(until), until)
        total += int((ended["finish_ns"] - ended["arrival_ns"]).sum())
        count += len(ended["number"])
    nothing_else = flash.command_ns + flash.read_ns + flash.transfer_ns + flash.link_ns(1)
    return (total / count - nothing_else) / mean_wait(load, flash.read_ns) - 1


def read_error(pages: int, commands: int) -> float:
    """Return the relative error of the rate at which reads end, of so many pages, that all wait from the beginning."""
    flash = FlashParameters(planes=2, blocks_per_plane=32, link_bytes_per_second=FAST)
    load = HostLoad(pages * flash.page_bytes, flash.namespace_pages, sequential=pages > 1, queue_depth=1)
    arrivals = np.zeros(commands // pages, np.int64)
    ends = np.sort(FlashDrive(flash).serve(LoadGenerator(load, flash).take_next(arrivals))["finish_ns"])
    first, last = len(ends) // 4, len(ends) // 2
    rate = float((last - first) / (ends[last] - ends[first])) * SECOND
    return rate / flash_ceiling(flash, 1.0, pages).iops - 1


def collection_error(size: int, over: float, seed: int) -> float:
    """Return the relative error of the write amplification of four dies, after they were written three times."""
    flash = FlashParameters(
        channels=1, dies_per_channel=4, blocks_per_plane=512, pages_per_block=size, over_provisioning=over
    )
    mapping = age(PageMapping(flash), seed)
    copied, written = mapping.copied_pages, mapping.written_pages
    age(mapping, seed + 1)
    measured = 1 + (mapping.copied_pages - copied) / (mapping.written_pages - written)
    closed = flash.dies * (flash.blocks_per_plane - 1)
    return measured / greedy_write_amplification(size, closed, flash.namespace_pages) - 1


def age(mapping: PageMapping, seed: int) -> PageMapping:
    """Write a drive three times, page by page at random."""
    random, pages = np.random.default_rng(seed), mapping.namespace_pages
    for _ in range(6):
        mapping.write(random.integers(0, pages, pages // 2))
    return mapping


def model_costs(policy: str, seed: int, seconds: int, ends: Any) -> list[float]:
    """Return the CPU seconds of each device second of all drives; `ends` is a hash that takes when commands end."""
    flash = FlashParameters(blocks_per_plane=32, over_provisioning=0.28)
    aged = age(PageMapping(flash), seed)
    drives = [FlashDrive(flash, policy, mapping=copy.deepcopy(aged)) for _ in range(DRIVES)]
    loads = [_commands(flash, seed + number, seconds) for number in range(DRIVES)]
    costs = []
    for first in range(0, seconds * WINDOWS, WINDOWS):
        begin = time.process_time()
        for drive, commands in zip(drives, loads, strict=True):
            for window in range(first, first + WINDOWS):
                limits = [number * SECOND // WINDOWS for number in (window, window + 1)]
                part = slice(*np.searchsorted(commands["arrival_ns"], limits).tolist())
                ended = drive.serve(take(commands, part), limits[1])
                ends.update(ended["finish_ns"].tobytes())
        costs.append(time.process_time() - begin)
    return costs


def _commands(flash: FlashParameters, seed: int, seconds: int) -> Columns:
    """Return the commands of host and engine to one drive."""
    host = HostLoad(4096, flash.namespace_pages, READ_SHARE, iops=IOPS, seed=seed)
    engine = HostLoad(ENGINE_BYTES, flash.namespace_pages, sequential=True, iops=ENGINE_IOPS, poisson=False)
    parts = [LoadGenerator(load, flash).take_until(seconds * SECOND) for load in (host, engine)]
    parts[1]["engine"][:] = True
    commands = join(*parts)
    return take(commands, np.argsort(commands["arrival_ns"], kind="stable"))

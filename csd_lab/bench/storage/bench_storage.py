"""Flash of a drive: how far the model is from closed forms, and how the host's latency is protected."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from csd_emu.perfmodel.flash.flash_ceilings import flash_ceiling
from csd_emu.perfmodel.flash.flash_drive import FlashDrive
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import HostLoad, LoadGenerator
from csd_emu.profiles.flash_geometry import SECOND, FlashParameters
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
FAST = 2**52
"""Bytes per second of what does not count."""


def bench_storage(bench: Bench, quick: bool = False) -> BenchReport:
    """Compare the flash model with closed forms, and the policy `protect` with the best rates.

    With `--quick` fewer commands, two drives of the four, and the seeds of development.

    Figures: `queueing_error`: the largest relative error of the mean wait of M/D/1 queues on each die (at three loads),
    of the rates of random and of sequential reads at the ceiling, and of the write amplification of greedy collection
    under uniform writes (four drives). `protect_kept`: share of device seconds in which the policy `protect` keeps the
    99th percentile of the host's latency under a limit that the host alone keeps and training unthrottled
    (`protect_kept_unthrottled`) does not. `protect_rate`: training's rate over the best that keeps as many: of one rate
    for each level of the host's load, or its own; `protect_rate_worst` case.

    The samples have each error, and a hash of all ends: the same seed has the same on any machine.
    """
    errors, ends = dict[str, float](), hashlib.sha256()
    bench.progress.stage("compare queues with closed forms")
    count = 100_000 if quick else 2_000_000
    for load in LOADS:
        errors[f"M/D/1, load {load}"] = queue_error(load, count, bench.seed, ends)
    errors |= {f"reads of {pages} pages": read_error(pages, count // 10) for pages in (1, 128)}
    bench.progress.stage("compare garbage collection with its closed form")
    for size, over in COLLECTED if not quick else COLLECTED[:2]:
        errors[f"collection, {size} pages, {over}"] = collection_error(size, over, bench.seed)
    bench.progress.stage("protect the host's latency")
    rows = protect_rows(bench.seed, quick)
    figures = {"queueing_error": max(map(abs, errors.values()))} | summarise_protect(rows)
    samples: dict[str, Any] = {"errors": errors, "ends_sha256": ends.hexdigest(), "protect": rows}
    return bench.report("modelled", figures, samples, "none")


def protect_rows(seed: int, quick: bool) -> list[dict[str, Any]]:
    """Return what came of the cases of `protect` that have something to protect."""
    seeds, seconds = (DEVELOPMENT_SEEDS, QUICK_SECONDS) if quick else (FINAL_SEEDS, SECONDS)
    chosen = [(kind, policy, seed + each, seconds) for each in seeds for kind, policy in CASES]
    with spread_over(PROCESSES) as spread:
        return [row for row in spread(play_protect, chosen) if row is not None]


def queue_error(load: float, commands: int, seed: int, ends: Any) -> float:
    """Return the relative error of the mean wait of reads whose dies are busy for the share `load`.

    `ends` is a hash that takes when they end.
    """
    flash = FlashParameters(blocks_per_plane=32, channel_bytes_per_second=FAST, link_bytes_per_second=FAST)
    rate = load * flash.dies * SECOND / flash.read_ns
    generator = LoadGenerator(HostLoad(4096, flash.namespace_pages, iops=rate, seed=seed), flash)
    drive, total, count = FlashDrive(flash), 0, 0
    for part in range(1, PARTS + 1):
        until = int(commands / rate * SECOND * part / PARTS)
        ended = drive.serve(generator.take_until(until), until)
        ends.update(ended["finish_ns"].tobytes())
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
    measured = PageMapping(flash).age(seed).age(seed + 1, counted=True).write_amplification
    closed = flash.dies * (flash.blocks_per_plane - 1)
    return measured / greedy_write_amplification(size, closed, flash.namespace_pages) - 1

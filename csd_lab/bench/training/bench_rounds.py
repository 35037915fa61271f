"""Cost of a round beside the training, and the exchange of weights beside an all-reduce."""

from __future__ import annotations

import statistics

from csd_emu.util.deadline import Deadline
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives
from csd_lab.bench.noop_rounds import ELEMENTS, WARM_UP_ROUNDS, NoopRounds
from csd_lab.bench.training.gloo import gloo_group

DEVICES = 8
NOOP_ROUNDS = 100
EXCHANGE_ELEMENTS, EXCHANGE_REPETITIONS = 10_000_000, 9


def run(bench: Bench) -> BenchReport:
    """Do rounds without training on 8 native agents, mutual TLS on. Wall seconds.

    Figures: `noop_round_seconds_median`, a round with 4 KiB of weights; `exchange_over_gloo`, the median of rounds with
    one float32 tensor of 40 MB over that of gloo's all-reduce of as much on 9 ranks, taken in turns.
    """

    async def work(drives: RunningDrives) -> dict[str, list[float]]:
        bench.progress.stage(f"{NOOP_ROUNDS} rounds with {4 * ELEMENTS} bytes")
        noop = NoopRounds(drives.fleet, drives.names, ELEMENTS, bench.seed)
        await noop.warm_up()
        noop_seconds = [await noop.seconds() for _ in range(NOOP_ROUNDS)]
        return {"noop_round_seconds": noop_seconds} | await _interleaved(drives, bench)

    samples = bench.on_processes(DEVICES, work)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    figures = {
        "noop_round_seconds_median": medians["noop_round_seconds"],
        "exchange_over_gloo": medians["exchange_seconds"] / medians["gloo_seconds"],
    }
    return bench.report("wall", figures, dict(samples), "native")


async def _interleaved(drives: RunningDrives, bench: Bench) -> dict[str, list[float]]:
    bench.progress.stage(f"{4 * EXCHANGE_ELEMENTS} bytes by turns: a round, and gloo on {DEVICES + 1} ranks")
    samples: dict[str, list[float]] = {"exchange_seconds": [], "gloo_seconds": []}
    exchange = NoopRounds(drives.fleet, drives.names, EXCHANGE_ELEMENTS, bench.seed)
    async with gloo_group(DEVICES + 1, EXCHANGE_ELEMENTS, Deadline(WATCHDOG_SECONDS)) as gloo:
        await exchange.warm_up()
        for _ in range(WARM_UP_ROUNDS):
            await gloo.all_reduce_seconds()
        for number in range(EXCHANGE_REPETITIONS):
            samples["exchange_seconds"].append(await exchange.seconds())
            samples["gloo_seconds"].append(await gloo.all_reduce_seconds())
            bench.progress.advance((number + 1) / EXCHANGE_REPETITIONS)
    return samples

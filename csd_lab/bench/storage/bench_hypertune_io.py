"""HyperTune where the host's reads and writes are what slows drives, against batches that know the load."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, spread_over
from csd_lab.bench.intervals import half_interval
from csd_lab.bench.storage.io_disturbances import IO_KINDS, IoRanges, draw_io_case
from csd_lab.bench.training.hypertune_case import describe, oracle, play
from host.policies.batching.make import make_tuner

DEVELOPMENT_SEEDS = tuple(range(501, 507))
FINAL_SEEDS = tuple(range(98301, 98311))
PROCESSES = 2


def bench_hypertune_under_io(bench: Bench, quick: bool = False) -> BenchReport:
    """HyperTune under host I/O on some drives, over an oracle that knows the load.

    Arrays of `hypertune_world` whose drives read each record before they compute it. Hosts load some drives: loads that
    come and go, that burst, and that vary by the hour of a day. What reads take then is measured on the flash model;
    computing is slowed by what the host takes of the DRAM. The oracle has the best batches of each period.

    Figures: `rate_over_oracle`, mean over seeds and kinds; `rate_over_oracle_low`, lower end of its 95 % interval over
    seeds; `worst` case; `static_over_oracle`, the plan's batches kept; `retunes_max` of one load; the mean of each
    kind. `--quick` takes the seeds of development in place of the final ones. Clock: modelled.
    """
    seeds = [bench.seed + seed for seed in (DEVELOPMENT_SEEDS if quick else FINAL_SEEDS)]
    chosen = list(product(IO_KINDS, seeds))
    bench.progress.stage(f"{len(chosen)} courses of host loads")
    rows = []
    with spread_over(PROCESSES) as spread:
        for row in spread(play_io_case, chosen):
            rows.append(row)
            bench.progress.advance(len(rows) / len(chosen))
    samples = {"ranges": asdict(IoRanges()), "seeds": seeds, "cases": rows}
    return bench.report("modelled", summarise_io(rows), samples, "none")


def play_io_case(chosen: tuple[str, int]) -> dict[str, Any]:
    """Return what came of a case, by kind and seed."""
    kind, seed = chosen
    case = draw_io_case(seed, kind)
    rates = [rate for rate, _ in oracle(case)]
    tuned, static = play(case), play(case, partial(make_tuner, "stannis"))
    return {
        "kind": kind,
        "seed": seed,
        "over_oracle": tuned.over(rates),
        "static_over_oracle": static.over(rates),
        "retunes": tuned.retunes,
        "retunes_per_disturbance": tuned.retunes_per_disturbance,
        "case": describe(case),
    }


def summarise_io(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of cases in which each seed has each kind."""
    seeds = sorted({row["seed"] for row in rows})
    means = [float(np.mean([row["over_oracle"] for row in rows if row["seed"] == seed])) for seed in seeds]
    figures = {
        "rate_over_oracle": float(np.mean(means)),
        "rate_over_oracle_low": float(np.mean(means)) - half_interval(means),
        "worst": float(min(row["over_oracle"] for row in rows)),
        "static_over_oracle": float(np.mean([row["static_over_oracle"] for row in rows])),
        "retunes_max": float(max(max(row["retunes_per_disturbance"]) for row in rows)),
    }
    for kind in IO_KINDS:
        figures[f"{kind}_over_oracle"] = float(np.mean([row["over_oracle"] for row in rows if row["kind"] == kind]))
    return figures

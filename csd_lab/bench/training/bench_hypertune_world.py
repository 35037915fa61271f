"""HyperTune in a world that it was not made from: four kinds of disturbance, against the best batches there were."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, spread_over
from csd_lab.bench.intervals import half_interval
from csd_lab.bench.training import hypertune_development_seeds, hypertune_final_seeds
from csd_lab.bench.training.hypertune_case import describe, draw_case, for_energy, oracle, play
from csd_lab.bench.training.hypertune_ranges import KINDS, WorldRanges
from host.policies.batching.make import make_tuner

PROCESSES = 2
_MEANS = ("static_over_oracle", "energy_over_oracle", "rate_energy_over_oracle")


def bench_hypertune_world(bench: Bench, quick: bool = False) -> BenchReport:
    """HyperTune in a world that it was not made from: four kinds of disturbance, against the best batches there were.

    Drive the tuner through drawn arrays and disturbances whose seconds share no code with its model; every device is
    waited for. The oracle knows each period's seconds and has the best batches that stay for it, the global batch no
    larger than the plan's.

    Figures: `rate_over_oracle`, records over those that the oracle does in the same seconds of each period, mean over
    seeds and kinds; `rate_over_oracle_low`, lower end of its 95 % interval over seeds; `worst` case; `retunes_max` from
    the beginning of one disturbance to that of the next, bursts of three steps and more included, and
    `retunes_before_max` before the first one; the means of each kind; `static_over_oracle`, the plan's batches kept;
    `energy_over_oracle`, records per joule with objective `energy` over those of an oracle that saves joules, and
    `rate_energy_over_oracle`, the same of objective `rate`.
    `--quick` takes the seeds of development in place of the final ones. Clock: modelled.
    """
    began = time.monotonic()
    seeds = [bench.seed + seed for seed in (hypertune_development_seeds if quick else hypertune_final_seeds).SEEDS]
    chosen = list(product(KINDS, seeds))
    bench.progress.stage(f"{len(chosen)} courses of disturbances")
    rows = []
    with spread_over(PROCESSES) as spread:
        for row in spread(play_case, chosen):
            rows.append(row)
            bench.progress.advance(len(rows) / len(chosen))
    samples = {"ranges": asdict(WorldRanges()), "seeds": seeds, "cases": rows}
    return bench.report("modelled", summarise(rows), samples | {"wall_seconds": time.monotonic() - began}, "none")


def play_case(chosen: tuple[str, int], ranges: WorldRanges | None = None) -> dict[str, Any]:
    """Return what came of a case, by kind and seed; of the bench's ranges unless others are given."""
    kind, seed = chosen
    case = draw_case(seed, kind, ranges)
    best = oracle(case)
    rates = [rate for rate, _ in best]
    tuned, static = play(case), play(case, partial(make_tuner, "stannis"))
    saving, least = play(for_energy(case)), [rate for rate, _ in oracle(case, energy=True)]
    return {
        "kind": kind,
        "seed": seed,
        "over_oracle": tuned.over(rates),
        "static_over_oracle": static.over(rates),
        "energy_over_oracle": saving.energy_over(least),
        "rate_energy_over_oracle": tuned.energy_over(least),
        "energy_retunes_per_disturbance": saving.retunes_per_disturbance,
        "retunes": tuned.retunes,
        "retunes_before": tuned.retunes_before,
        "retunes_per_disturbance": tuned.retunes_per_disturbance,
        "period_rates": [r / s for r, s in zip(tuned.period_records, tuned.period_seconds, strict=True)],
        "oracle": [{"rate": rate, "batches": batches.tolist()} for rate, batches in best],
        "case": describe(case),
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of cases in which each seed has each kind."""
    seeds = sorted({row["seed"] for row in rows})
    means = [float(np.mean([row["over_oracle"] for row in rows if row["seed"] == seed])) for seed in seeds]
    figures = {
        "rate_over_oracle": float(np.mean(means)),
        "rate_over_oracle_low": float(np.mean(means)) - half_interval(means),
        "worst": float(min(row["over_oracle"] for row in rows)),
        "retunes_max": float(max(max(row["retunes_per_disturbance"]) for row in rows)),
        "retunes_before_max": float(max(row["retunes_before"] for row in rows)),
        "retunes_mean": float(np.mean([count for row in rows for count in row["retunes_per_disturbance"]])),
        **{name: float(np.mean([row[name] for row in rows])) for name in _MEANS},
    }
    for kind in KINDS:
        own = [row for row in rows if row["kind"] == kind]
        figures[f"{kind}_over_oracle"] = float(np.mean([row["over_oracle"] for row in own]))
        figures[f"{kind}_worst"] = float(min(row["over_oracle"] for row in own))
        figures[f"{kind}_retunes_max"] = float(max(max(row["retunes_per_disturbance"]) for row in own))
    return figures

"""Cost of a target by aggregation strategy and by how unevenly records are dealt out: rounds, seconds, joules."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.federated.federated_development_seeds import DEVELOPMENT_SEEDS
from csd_lab.bench.federated.federated_final_seeds import FINAL_SEEDS
from csd_lab.bench.federated.federated_jobs import ALPHAS, BASELINE, RECORDS, STRATEGIES, TARGET, job_keys
from csd_lab.bench.federated.federated_runs import make_request, run_to
from csd_lab.bench.harness import Bench, temporary_folder
from csd_lab.bench.intervals import half_interval

# What a run costs, and what each figure is a ratio of.
COSTS = ("rounds", "seconds", "joules")
QUICK_ALPHA = 0.3


def bench_federated(bench: Bench, quick: bool = False) -> BenchReport:
    """Strategies' rounds, modelled seconds and joules to a target, with records dealt out more and less unevenly.

    Train the quickstart's model on ten modelled drives, with 700 of scikit-learn's digits dealt out by a Dirichlet
    distribution of concentration alpha, until the accuracy on held-out records has been 0.85 or more for three rounds;
    a run is given up after 60. Host, aggregation, screening, accounting and the drives' trainer are the product's own,
    in one process. Ten seeds, of the split, the first weights and all orders; each is the same for all strategies.
    With `--quick` the three development seeds at alpha 0.3.

    Figures: `fedavg_rounds_alpha_A`, and seconds and joules likewise: mean over the seeds. For every other strategy
    `STRATEGY_rounds_alpha_A`, and seconds and joules: its cost over FedAvg's on the same seed, geometric mean; below 1
    it is the cheaper. `..._low` and `..._high`: 95 % interval of it over the seeds (Student, of logarithms).
    `STRATEGY_reached_alpha_A`: share of the runs that held the target. One that did not counts with all 60 rounds, so
    that costs are lower bounds where the share is below 1. Seconds are those of the array, which waits for its slowest
    drive; joules of drives and host, by the profiles' watts.
    """
    began = time.monotonic()
    seeds = [bench.seed + seed for seed in (DEVELOPMENT_SEEDS if quick else FINAL_SEEDS)]
    cases = [(seed, alpha) for seed in seeds for alpha in ((QUICK_ALPHA,) if quick else ALPHAS)]
    bench.progress.stage(f"{len(cases)} splits of the records, {len(STRATEGIES)} strategies on each")
    rows: list[dict[str, Any]] = []
    for number, (seed, alpha) in enumerate(cases, start=1):
        rows += judge_split(seed, alpha)
        bench.progress.advance(number / len(cases))
    return bench.report("modelled", summarise(rows), {"runs": rows, "wall_seconds": time.monotonic() - began}, "none")


def judge_split(seed: int, alpha: float) -> list[dict[str, Any]]:
    """Return what each strategy's run took on one split of the records."""
    return [judge(seed, alpha, strategy) for strategy in STRATEGIES]


def judge(seed: int, alpha: float, strategy: str) -> dict[str, Any]:
    """Return what a run took (see `csd_lab.bench.federated.federated_runs.TargetCost`)."""
    with one_thread(), temporary_folder() as folder:
        cost = run_to(TARGET, make_request(alpha, RECORDS, seed, job_keys(strategy)), folder)
    return {"seed": seed, "alpha": alpha, "strategy": strategy} | asdict(cost)


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of runs; on each split there is one of every strategy."""
    figures: dict[str, float] = {}
    for alpha in sorted({row["alpha"] for row in rows}):
        own = [row for row in rows if row["alpha"] == alpha]
        base = {row["seed"]: row for row in own if row["strategy"] == BASELINE}
        for strategy in dict.fromkeys(row["strategy"] for row in own):
            runs = [row for row in own if row["strategy"] == strategy]
            place = f"alpha_{alpha:g}"
            figures[f"{strategy}_reached_{place}"] = float(np.mean([row["reached"] for row in runs]))
            for cost in COSTS:
                name = f"{strategy}_{cost}_{place}"
                if strategy == BASELINE:
                    figures[name] = float(np.mean([row[cost] for row in runs]))
                else:
                    figures |= ratio_figures(name, [row[cost] / base[row["seed"]][cost] for row in runs])
    return figures


def ratio_figures(name: str, ratios: Sequence[float]) -> dict[str, float]:
    """Return the geometric mean of ratios, and the ends of its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle, half = float(np.mean(logs)), half_interval(logs)
    return {name: math.exp(middle), f"{name}_low": math.exp(middle - half), f"{name}_high": math.exp(middle + half)}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute with one thread inside the block, as a drive does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

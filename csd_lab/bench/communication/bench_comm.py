"""Communication hidden by priority, slices and credit, and the same on the wall clock."""

from __future__ import annotations

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.communication import comm_cases, comm_tuners, comm_wall
from csd_lab.bench.communication.comm_runs import WallRuns, on_wall
from csd_lab.bench.harness import Bench


def run(bench: Bench) -> BenchReport:
    """Compare schedules on the timeline, then on the wall clock: 3 native drives, compute paced, communication real.

    Figures on the timeline: `priority_over_fifo_max`, `_min` and `over_lower_bound` (see
    `csd_lab.bench.communication.comm_cases`), and those of the tuners (see `csd_lab.bench.communication.comm_tuners`).
    On the wall clock: `identical`, `wall_agrees` and `model_error_median` (see
    `csd_lab.bench.communication.comm_wall`).
    """
    progress = bench.progress
    progress.stage("schedules on the timeline")
    figures, cases = comm_cases.figures()
    progress.stage("tuners on the timeline")
    tuned, samples = comm_tuners.figures(bench.seed)
    samples["timeline"] = cases

    async def work(runs: WallRuns) -> tuple[bool, list[comm_wall.WallBlocks]]:
        return await comm_wall.identical(runs, progress), await comm_wall.measure(runs, progress)

    identical, seen = on_wall(bench, comm_cases.CASES[0].bytes_per_second, work)
    progress.stage("what the core says of these runs")
    found, samples["fit"], samples["wall"] = comm_wall.compare(seen)
    return bench.report("wall", figures | tuned | {"identical": float(identical)} | found, samples, "native")

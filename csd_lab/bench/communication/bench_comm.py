"""Communication hidden by priority, slices and credit, and the same on the wall clock."""

from __future__ import annotations

from csd_emu.engines import NativeEngine, make_engine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.communication import comm_cases, comm_tuners, comm_wall
from csd_lab.bench.communication.comm_models import spec_of
from csd_lab.bench.communication.comm_runs import WallRuns, wall_config, wall_request
from csd_lab.bench.harness import report
from host.fleet.lifecycle import StartedArray
from host.fleet.temporary_array import run_on_engine


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Compare schedules on the timeline, then on the wall clock: 3 native drives, compute paced, communication real.

    Figures on the timeline: `priority_over_fifo_max`, `_min` and `over_lower_bound` (see
    `csd_lab.bench.communication.comm_cases`), and those of the tuners (see `csd_lab.bench.communication.comm_tuners`).
    On the wall clock: `identical`, `wall_agrees` and `model_error_median` (see
    `csd_lab.bench.communication.comm_wall`).
    """
    progress.stage("schedules on the timeline")
    figures, cases = comm_cases.figures()
    progress.stage("tuners on the timeline")
    tuned, samples = comm_tuners.figures(seed)
    figures |= tuned
    samples["timeline"] = cases
    config = wall_config(comm_cases.CASES[0].bytes_per_second)

    seen: list[comm_wall.WallBlocks] = []

    async def work(started: StartedArray, engine: NativeEngine) -> None:
        runs = WallRuns(started, engine, config, seed)
        figures["identical"] = float(await comm_wall.identical(runs, progress))
        seen.extend(await comm_wall.measure(runs, progress))

    engine = make_engine(config, paths)
    if not isinstance(engine, NativeEngine):
        raise RuntimeError("the bench asked for another engine")
    request = wall_request(config, spec_of(comm_cases.CASES[0].model), 1, seed)
    run_on_engine(engine, request.array, paths, progress, work)
    progress.stage("what the core says of these runs")
    found, samples["fit"], samples["wall"] = comm_wall.compare(seen)
    figures |= found
    return report("comm", "wall", seed, figures, samples, "native")

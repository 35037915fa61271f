"""Memory of one more drive."""

from __future__ import annotations

from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import Bench, RunningDrives, array_of, bench_job, request_run

DEVICES = 8
ROUNDS = 3


def run(bench: Bench) -> BenchReport:
    """Train the quickstart's model for three rounds on 8 clones, then read what each QEMU holds for itself.

    Figure: `bytes_per_clone`, the sum of private memory in smaps_rollup, divided by 8.
    """
    job = bench_job(bench.seed).model_copy(update={"rounds": ROUNDS})
    request = request_run(array_of(bench.name, DEVICES), job)

    async def work(drives: RunningDrives) -> dict[str, int]:
        bench.progress.stage(f"train {ROUNDS} rounds on {DEVICES} drives")
        async with drives.training(request) as training:
            while not training.done:
                await training.run_round()
        return {handle.plan.device.name: drives.engine.private_bytes(handle) for handle in drives.started.handles}

    private = bench.on_array(request.array, work)
    return bench.report("wall", {"bytes_per_clone": sum(private.values()) / DEVICES}, {"private_bytes": private})

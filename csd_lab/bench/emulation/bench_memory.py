"""Memory of one more drive."""

from __future__ import annotations

from csd_emu.engines.qemu.qemu_engine import QemuEngine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import bench_config, bench_frame, bench_job, report, with_array
from firmware_agent.common.models import ModelSpec
from host.core.datasets import load_dataset
from host.core.evaluation import Evaluator
from host.fleet.lifecycle import StartedArray
from host.training.accounting import make_accountant
from host.training.federated import FederatedTraining
from host.training.round_exchange import RoundExchange

DEVICES = 8
ROUNDS = 3


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Train the quickstart's model for three rounds on 8 clones, then read what each QEMU holds for itself.

    Figure: `bytes_per_clone`, the sum of private memory in smaps_rollup, divided by 8.
    """
    job = bench_job(seed).model_copy(update={"rounds": ROUNDS})
    evaluator = Evaluator(ModelSpec(job.model), load_dataset(job.data.source, seed), seed)

    async def work(started: StartedArray, engine: QemuEngine) -> dict[str, int]:
        progress.stage(f"train {ROUNDS} rounds on {DEVICES} drives")
        names = [device.name for device in started.state.devices]
        exchange = RoundExchange(job, bench_frame(seed), started.fleet, lambda: names, lambda *_: None)
        accountant = make_accountant(bench_config("memory", DEVICES))
        training = FederatedTraining(job, names, exchange, accountant, evaluator)
        while not training.done:
            await training.run_round()
        return {handle.plan.device.name: engine.private_bytes(handle) for handle in started.handles}

    private = with_array("memory", DEVICES, paths, progress, seed, work)
    figures = {"bytes_per_clone": sum(private.values()) / DEVICES}
    return report("memory", "wall", seed, figures, {"private_bytes": private})

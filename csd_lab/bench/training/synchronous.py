"""Shared parts of the benches of synchronous training: a run of steps on real drives, and its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from csd_emu.config.array_file import ArrayConfig
from csd_emu.engines import Engine, make_engine
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.bench.harness import WATCHDOG_SECONDS
from firmware_agent.common.models import ZOO, ModelSpec
from host.app.prepare import RunRequest, prepare_run
from host.app.training_run import make_participants, make_sync_training
from host.config.job_file import JobConfig
from host.config.resolve import ResolvedRun
from host.core.datasets import synthetic_source
from host.core.records import RoundRecord, StepRecord
from host.fleet.lifecycle import StartedArray
from host.fleet.temporary_array import run_on_engine
from host.training.accounting import make_accountant
from host.training.run_faults import RunFaults
from host.training.sync_plan import SyncPlan

MODEL = "digits_cnn"
# So many that no epoch ends while it is measured: its last step is smaller than the batches.
RECORDS = 100_000


def sync_request(name: str, array: Mapping[str, Any], job: Mapping[str, Any], seed: int) -> RunRequest:
    """Return a synchronous run on virtual machines that belongs to the bench called `name`."""
    config = ArrayConfig.model_validate({"name": f"bench-{name}", "engine": "qemu", **array})
    wanted = {
        "model": MODEL,
        "data": {"source": synthetic_source(ZOO[MODEL].input_shape, ZOO[MODEL].classes, RECORDS)},
        "mode": "sync",
        "seed": seed,
        "watchdog": f"{WATCHDOG_SECONDS} s",
        **job,
    }
    return prepare_run(ResolvedRun(config, JobConfig.model_validate(wanted), ModelSpec(MODEL)))


def plan_of(request: RunRequest) -> SyncPlan:
    """Return the request's plan, which a synchronous job has."""
    if request.sync is None:
        raise RuntimeError("a bench of synchronous training asked for another mode")
    return request.sync


def run_one_round(request: RunRequest, paths: Paths, progress: Progress) -> RoundRecord:
    """Start the request's array, train one round on it, end it."""
    plan = plan_of(request)

    async def work(started: StartedArray, engine: Engine) -> RoundRecord:
        progress.stage(f"{request.job.sync.round_steps} steps on {len(plan.nodes)} nodes")
        accountant = make_accountant(request.config, request.models)
        async with RunFaults(started.fleet, plan.nodes, accountant.time, lambda *_: None) as faults:
            participants = make_participants(
                request, started.fleet, lambda: engine.list_devices(request.config.name), lambda *_: None
            )
            return await make_sync_training(request, participants, accountant, faults).run_round()

    return run_on_engine(make_engine(request.config, paths), request.array, paths, progress, work)


def imbalance(step: StepRecord) -> float:
    """Return (max - min) / max of the compute seconds of a step's devices."""
    seconds = [part.compute_seconds for part in step.devices]
    return 1 - min(seconds) / max(seconds)


def step_samples(steps: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """Return each step's batches and compute seconds, by device, as a report's samples."""
    return [
        {
            "step": step.step,
            "batches": {part.device: part.batch_size for part in step.devices},
            "compute_seconds": {part.device: part.compute_seconds for part in step.devices},
            "expected_seconds": {part.device: part.expected_seconds for part in step.devices},
            "array_seconds": step.array_seconds,
            "disturbed": step.disturbed,
        }
        for step in steps
    ]

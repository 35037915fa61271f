"""Shared parts of the benches of synchronous training: a run of steps on real drives, and its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from csd_emu.config.array_file import ArrayConfig
from csd_lab.bench.harness import WATCHDOG_SECONDS, Bench, RunningDrives, request_run
from firmware_agent.common.models import ZOO
from host.app.run_request import RunRequest
from host.core.datasets import synthetic_source
from host.core.records import RoundRecord, StepRecord

MODEL = "digits_cnn"
# So many that no epoch ends while it is measured: its last step is smaller than the batches.
RECORDS = 100_000


def sync_request(config: ArrayConfig, job: Mapping[str, Any], seed: int) -> RunRequest:
    """Return a synchronous run on that array, with more keys of its job."""
    usual = {
        "model": MODEL,
        "data": {"source": synthetic_source(ZOO[MODEL].input_shape, ZOO[MODEL].classes, RECORDS)},
        "mode": "sync",
        "seed": seed,
        "watchdog": f"{WATCHDOG_SECONDS} s",
    }
    return request_run(config, usual | dict(job))


def run_one_round(request: RunRequest, bench: Bench) -> RoundRecord:
    """Start the request's array, train one round on it, end it."""

    async def work(drives: RunningDrives) -> RoundRecord:
        nodes = request.config.list_nodes()
        bench.progress.stage(f"{request.job.sync.round_steps} steps on {len(nodes)} nodes")
        async with drives.training(request) as training:
            return await training.run_round()

    return bench.on_array(request.array, work)


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

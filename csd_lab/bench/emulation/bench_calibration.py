"""Error of a calibration table at a batch size that it does not have."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from csd_emu.engines.qemu.qemu_engine import QemuEngine
from csd_emu.profiles.calibration import CalibrationRow, CalibrationTable
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress, Silent
from csd_lab.bench.bench_report import BenchReport
from csd_lab.bench.harness import report
from firmware_agent.common.models import ModelSpec
from host.app.calibration_report import machine_request, measure_table
from host.config.calibration_request import CalibrationRequest, make_request
from host.fleet.device_session import DeviceSession
from host.fleet.lifecycle import StartedArray
from host.fleet.temporary_array import run_on_machines

MACHINES = 2
# Small images, or a bench would take hours; the largest batch is the one that the table does not get to see. The
# longest work first, so that both machines end together.
DIGITS = (("digits_cnn", (1, 2, 4, 8, 16, 32, 64)),)
IMAGES = (
    ("mobilenet_v2", (2, 8, 16, 20, 32)),
    ("resnet50", (2, 4, 8, 12)),
    ("squeezenet", (2, 8, 16, 24, 40)),
)
DIGITS_SHAPE, IMAGES_SHAPE = (1, 8, 8), (3, 32, 32)
CLASSES = 10


def run(paths: Paths, progress: Progress, seed: int) -> BenchReport:
    """Measure four models on VMs, then foretell the largest batch of each from a table of the others.

    Figure: `worst_error`, the largest of |foretold / measured - 1| over the models, of seconds per step.
    """
    tables: list[CalibrationTable] = []
    for shape, cases in ((DIGITS_SHAPE, DIGITS), (IMAGES_SHAPE, IMAGES)):
        requests = [
            make_request(ModelSpec(name, None, {"num_classes": CLASSES}), shape, batches, seed=seed)
            for name, batches in cases
        ]
        tables += _measure(requests, paths, progress)
    samples = {table.model: _held_out(table) for table in tables}
    worst = max(abs(sample["error"]) for sample in samples.values())
    return report("calibration", "counted", seed, {"worst_error": worst}, samples)


def _measure(requests: Sequence[CalibrationRequest], paths: Paths, progress: Progress) -> list[CalibrationTable]:
    """Measure models of one input shape, at most `MACHINES` at a time."""
    largest = max(requests, key=lambda request: request.machine_bytes)
    todo = deque(requests)
    tables: list[CalibrationTable] = []

    async def work(started: StartedArray, engine: QemuEngine) -> None:
        async def measure_next(session: DeviceSession) -> None:
            while todo:
                tables.append(await measure_table(session, todo.popleft(), engine.image_hash, Silent()))

        progress.stage(f"measure {', '.join(request.spec.name for request in requests)}")
        await asyncio.gather(*map(measure_next, started.fleet.sessions().values()))

    run_on_machines(machine_request(largest, "bench-calib", min(MACHINES, len(requests))), paths, progress, work)
    return tables


def _held_out(table: CalibrationTable) -> dict[str, Any]:
    """Return what the table says of its largest batch without its row, beside what was measured."""
    *rows, last = table.rows
    rest = msgspec.structs.replace(table, rows=tuple(rows))
    foretold = rest.step_seconds(last.batch_size)
    return {
        "input_shape": list(table.input_shape),
        "held_out_batch": last.batch_size,
        "foretold_seconds": msgspec.to_builtins(foretold),
        "measured_seconds": msgspec.to_builtins(last.seconds),
        "error": foretold.total / last.seconds.total - 1,
        "rows": [_raw(row) for row in table.rows],
    }


def _raw(row: CalibrationRow) -> dict[str, Any]:
    return {"batch_size": row.batch_size, "steps": msgspec.to_builtins(row.steps)}

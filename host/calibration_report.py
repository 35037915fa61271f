"""`csd-emu calibrate` from request to report: measure and keep a table, or measure rows of a kept one again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from csd_emu.calibration import REFERENCE_CORE, CalibrationStore, CalibrationTable, median_step
from csd_emu.fidelity import spread_of
from csd_emu.paths import Paths
from csd_emu.profiles import get_profile
from csd_emu.progress import Progress
from host.calibrate import build_there, calibrate, machine_request, measure_batch
from host.calibration_request import CalibrationRequest
from host.lifecycle import StartedArray
from host.machines import run_on_machines
from host.outputs import CalibrationOutcome, CalibrationReport, VerifiedRow

if TYPE_CHECKING:
    from csd_emu.engines.qemu import QemuEngine

SHOWN_PROFILE = "newport"
# How far a row that is measured again may be off.
VERIFY_TOLERANCE = 0.02


def measure(request: CalibrationRequest, output: Path | None, paths: Paths, progress: Progress) -> CalibrationReport:
    """Measure a table and keep it: in `output`, else among the user's own.

    Raises:
        CsdError: it could not be measured, or its figures break the rules of a table; nothing is kept.
    """
    begin = time.monotonic()
    table = calibrate(request, paths, progress)
    path = CalibrationStore(paths.calibration).save(table, output)
    return make_report(table, path, [], time.monotonic() - begin)


def verify_rows(request: CalibrationRequest, count: int, paths: Paths, progress: Progress) -> CalibrationReport:
    """Measure `count` random rows of the table of `request` again, all if it has fewer; the table stays as it is.

    Raises:
        CalibrationError: there is no table.
        CsdError: it could not be measured.
    """
    begin = time.monotonic()
    path, table = CalibrationStore(paths.calibration).locate(request.spec, request.input_shape)
    request = replace(request, batches=tuple(table.batches), layers=False)
    generator = np.random.default_rng(request.seed)
    chosen = sorted(int(n) for n in generator.choice(table.batches, min(count, len(table.rows)), replace=False))
    verified = measure_again(table, chosen, request, paths, progress)
    return make_report(table, path, verified, time.monotonic() - begin)


def measure_again(
    table: CalibrationTable, batches: Sequence[int], request: CalibrationRequest, paths: Paths, progress: Progress
) -> list[VerifiedRow]:
    """Measure `batches` on a fresh machine and compare them with what `table` says."""

    async def work(started: StartedArray, _: QemuEngine) -> list[VerifiedRow]:
        session = next(iter(started.fleet.sessions().values()))
        await build_there(session, request)
        rows = []
        for batch_size in batches:
            progress.stage(f"{request.spec.name}: batch {batch_size} again")
            said = table.step_seconds(batch_size).total
            measured = await measure_batch(session, request, batch_size, said)
            seen = median_step(measured.step_seconds).total
            rows.append(VerifiedRow(batch_size, said, seen, seen / said - 1))
        return rows

    return run_on_machines(machine_request(request), paths, progress, work)


def make_report(
    table: CalibrationTable, path: Path, verified: list[VerifiedRow], wall_seconds: float, drive: str = ""
) -> CalibrationReport:
    """Return what the command prints; `drive` is the real one that was measured, if any."""
    shown = SHOWN_PROFILE if table.core == REFERENCE_CORE else table.core
    profile, errors = get_profile(shown), table.error_estimate()
    rows = [
        CalibrationOutcome(
            batch_size=row.batch_size,
            steps=len(row.steps),
            reference_seconds=row.seconds,
            profile_seconds=table.device_seconds(row.batch_size, profile),
            peak_memory_bytes=row.peak_memory_bytes,
            error_estimate=errors.get(row.batch_size),
            wall_seconds=row.wall_seconds,
            spread=spread_of([step.total for step in row.steps]),
            layers=row.layers,
        )
        for row in table.rows
    ]
    return CalibrationReport(
        model=table.model,
        arguments=table.arguments,
        input_shape=list(table.input_shape),
        classes=table.classes,
        parameters=table.parameters,
        clock=table.clock,
        core=table.core,
        profile=shown,
        drive=drive,
        image=table.image,
        path=str(path),
        rows=rows,
        encode_seconds=table.encode_seconds_median,
        verified=verified,
        tolerance=VERIFY_TOLERANCE,
        confirmed=all(abs(row.relative_difference) <= VERIFY_TOLERANCE for row in verified),
        wall_seconds=wall_seconds,
    )

"""`csd-emu calibrate`: a table is measured and kept, or rows of it are measured again, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationStore, CalibrationTable, median_step, spread_of
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from firmware_agent.common.frames.measure_frames import LayerTimes
from host.app.calibration_measurement import build_there, machine_request, measure_batch
from host.config.calibration_request import CalibrationRequest
from host.core.owned_files import check_writable
from host.fleet.lifecycle import StartedArray
from host.fleet.temporary_array import run_on_machines

if TYPE_CHECKING:
    from csd_emu.engines.qemu.qemu_engine import QemuEngine


class CalibrationOutcome(msgspec.Struct, frozen=True):
    """One batch size in `csd-emu calibrate`: seconds of the median step, per phase, on two cores.

    `reference_seconds` are as measured, `profile_seconds` those of a drive of the report's profile; on a real drive
    both are the same. `error_estimate` is how far the table would be off here without this row, null with fewer than
    three rows; `spread` the distance of the steps' quartiles over their median. `layers` are of the reference seconds,
    null if they were not measured. `cycles_per_instruction` are of each phase as the core model counted them, and
    `cycles_spread` how far whole steps differ in them; null if they were not counted, or in one step alone.
    """

    batch_size: int
    steps: int
    reference_seconds: PhaseSeconds
    profile_seconds: PhaseSeconds
    peak_memory_bytes: int
    error_estimate: float | None
    wall_seconds: float
    spread: float
    layers: LayerTimes | None = None
    cycles_per_instruction: dict[str, float] | None = None
    cycles_spread: float | None = None


class VerifiedRow(msgspec.Struct, frozen=True):
    """One row that was measured again; `relative_difference` is measured / table - 1, of seconds per step."""

    batch_size: int
    table_seconds: float
    measured_seconds: float
    relative_difference: float


class CalibrationReport(msgspec.Struct, frozen=True):
    """`csd-emu calibrate`: the table, and what of it was measured again.

    `core` and `clock` say what was measured: the counted core of a virtual machine, ``reference`` or ``core.`` and the
    digest of a profile's, or a real `drive` (empty of a virtual one; ``this machine`` of a host) by the wall's.
    `confirmed` is false if a row of `verified` differs by more than `tolerance`. `wall_seconds` is the cost of the
    command.
    """

    model: str
    arguments: dict[str, int | float | str | bool]
    input_shape: list[int]
    classes: int
    parameters: int
    clock: str
    core: str
    profile: str
    drive: str
    image: str
    path: str
    rows: list[CalibrationOutcome]
    encode_seconds: float
    verified: list[VerifiedRow]
    tolerance: float
    confirmed: bool
    wall_seconds: float


SHOWN_PROFILE = "newport"
# How far a row that is measured again may be off.
VERIFY_TOLERANCE = 0.02


MeasureTable = Callable[[CalibrationRequest, Paths, Progress], CalibrationTable]
"""Measures a table: `calibrate`, or `RealMachine.measure`."""


def keep_table(
    measure: MeasureTable,
    request: CalibrationRequest,
    output: Path | None,
    paths: Paths,
    progress: Progress,
    drive: str = "",
) -> CalibrationReport:
    """Measure a table and keep it: in `output`, else among the user's own; `drive` is the real one, if any.

    Raises:
        EnvironmentUnfit: `output` cannot be written, or what the measurement needs is missing.
        CsdError: it could not be measured, or its figures break the rules of a table; nothing is kept.
    """
    check_writable(output or paths.calibration / "table.json", "name another file with --output", folder=True)
    begin = time.monotonic()
    table = measure(request, paths, progress)
    path = CalibrationStore(paths.calibration).save(table, output)
    return make_report(table, path, [], time.monotonic() - begin, drive, request.profile or SHOWN_PROFILE)


def verify_rows(request: CalibrationRequest, count: int, paths: Paths, progress: Progress) -> CalibrationReport:
    """Measure `count` random rows of the table of `request` again, all if it has fewer; the table stays as it is.

    Raises:
        CalibrationError: there is no table.
        CsdError: it could not be measured.
    """
    begin = time.monotonic()
    path, table = (
        CalibrationStore(paths.calibration).of_task(request.key.task).locate(request.spec, request.input_shape)
    )
    drawn = np.random.default_rng(request.seed).choice(table.batches, min(count, len(table.rows)), replace=False)
    verified = measure_again(
        table, sorted(map(int, drawn)), replace(request, batches=tuple(table.batches), layers=False), paths, progress
    )
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
            seen = median_step((await measure_batch(session, request, batch_size, said)).step_seconds).total
            rows.append(VerifiedRow(batch_size, said, seen, seen / said - 1))
        return rows

    return run_on_machines(machine_request(request), paths, progress, work)


def make_report(
    table: CalibrationTable,
    path: Path,
    verified: list[VerifiedRow],
    wall_seconds: float,
    drive: str = "",
    profile_name: str = SHOWN_PROFILE,
) -> CalibrationReport:
    """Return what the command prints; `drive` is the real one that was measured, if any, else a profile is named."""
    shown = table.core if table.clock == "wall" else profile_name
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
            cycles_per_instruction=None if row.cycles is None else row.cycles.per_instruction(),
            cycles_spread=None if row.cycles is None else row.cycles.spread,
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

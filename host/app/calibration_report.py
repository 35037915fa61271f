"""`csd-emu calibrate`: measure what a training step costs on a virtual drive, keep it as a table, or check a table."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from csd_emu.config.array_file import ArrayConfig
from csd_emu.cycles.parameters import CoreParameters
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.perfmodel.profile_fit import spread_of
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import (
    FORMAT,
    REFERENCE_CORE,
    CalibrationKey,
    CalibrationRow,
    CalibrationStore,
    CalibrationTable,
    Versions,
    median_step,
    row_mark,
)
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import DeviceFailed
from firmware_agent.common.frames.frame_fields import MEASURES_LAYERS, WARM_UP_STEPS, PhaseSeconds
from firmware_agent.common.frames.measure_frames import LayerTimes, Measure, Measured
from firmware_agent.common.frames.session_frames import Hello, Job
from host.app.cycle_counter import CycleCounter
from host.config.calibration_request import CalibrationRequest
from host.config.job_file import DataSection
from host.core.datasets import load_dataset, synthetic_source
from host.fleet.device_session import DeviceSession
from host.fleet.lifecycle import ArrayRequest, StartedArray
from host.fleet.temporary_array import run_on_machines
from host.training.round_exchange import prepare_device
from host.training.screening import screen_measured

if TYPE_CHECKING:
    from csd_emu.engines.qemu.qemu_engine import QemuEngine

# The reference core itself; the table's seconds are scaled for a profile when they are looked up.
PROFILE = "generic-a53"
# A batch is measured for so many counted seconds, of at most so many steps.
MEASURE_SECONDS, MAX_STEPS = 1.0, 32
# From so many seconds per step on, the warm-up takes the smallest batch: what it is for is the optimiser's state.
_LONG_STEP_SECONDS, _SHORT_WARM_UP = 5.0, 1
_UNLIMITED_SECONDS = 3600.0
# Small, so that weights stay finite; it changes no count.
_LEARNING_RATE, _MOMENTUM = 1e-4, 0.9
# Whole steps that the core model sees, and of long ones; they repeat within a few thousandths.
CYCLE_STEPS, LONG_CYCLE_STEPS = 5, 2
# Wall time after which a silent drive counts as dead: a step of a large model takes many minutes.
_WATCHDOG_SECONDS = 4 * 3600.0


def calibrate(request: CalibrationRequest, paths: Paths, progress: Progress) -> CalibrationTable:
    """Start one virtual machine, measure every batch size of `request` on it, and end it.

    Raises:
        EnvironmentUnfit: QEMU or libvirt is missing.
        DeviceError: the machine did not come up, or the model does not train there.
    """
    plugin = CyclePlugin.build(paths.cycles, CoreParameters()) if request.cycles else None

    async def work(started: StartedArray, engine: QemuEngine) -> CalibrationTable:
        session = next(iter(started.fleet.sessions().values()))
        counter = None if plugin is None else CycleCounter(started.handles[0].plan.marks, plugin.parameters.digest)
        return await measure_table(session, request, engine.image_hash, progress, counter=counter)

    return run_on_machines(machine_request(request), paths, progress, work, plugin)


async def measure_table(
    session: DeviceSession,
    request: CalibrationRequest,
    image: str,
    progress: Progress,
    key: CalibrationKey | None = None,
    counter: CycleCounter | None = None,
) -> CalibrationTable:
    """Have one device build the model and measure every batch size; return the table.

    Args:
        session: of the device.
        request: what to measure.
        image: hash of the ARM image that it runs, empty for a real drive.
        progress: shown the stages.
        key: what the table will be of; None: the reference core.
        counter: reads what the core model counted; None if none counts.

    Raises:
        DeviceError: it was lost, or a batch failed in it.
    """
    await build_there(session, request)
    key = key or request.key
    mark = row_mark(key, image)
    rows: list[CalibrationRow] = []
    answers: list[Measured] = []
    for batch_size in request.batches:
        progress.stage(f"{request.spec.name}: batch {batch_size}")
        begin = time.monotonic()
        expected_seconds = rows[-1].seconds.total / rows[-1].batch_size * batch_size if rows else 0.0
        measured = await measure_batch(session, request, batch_size, expected_seconds, counter is not None)
        wall_seconds = time.monotonic() - begin
        rows.append(
            CalibrationRow(
                *(mark, batch_size, tuple(measured.step_seconds), measured.peak_memory_bytes, wall_seconds),
                layers=measured.layers,
                cycles=None if counter is None else counter.take(),
            )
        )
        answers.append(measured)
    return _table(session.hello, request, key, image, rows, answers)


async def build_there(session: DeviceSession, request: CalibrationRequest) -> None:
    """Have a device build the model of `request`.

    Raises:
        DeviceError: it was lost, or could not.
    """
    job = Job(
        model=request.spec.name,
        arguments=dict(request.key.arguments),
        source=request.spec.source,
        image_scale=load_dataset(source_of(request), request.seed).image_scale,
        seed=request.seed,
        learning_rate=_LEARNING_RATE,
        momentum=_MOMENTUM,
        batch_size=request.batches[0],
    )
    await prepare_device(session, job, Deadline(_WATCHDOG_SECONDS))


async def measure_batch(
    session: DeviceSession,
    request: CalibrationRequest,
    batch_size: int,
    expected_seconds: float,
    cycles: bool = False,
) -> Measured:
    """Measure one batch size on a device that has built the model.

    Args:
        session: of the device.
        request: says how many steps, and which batch size is the smallest.
        batch_size: samples per step.
        expected_seconds: of a step, roughly; 0 if nothing is known.
        cycles: whether the core model shall see whole steps.

    Layers are measured too if the request says so and the drive's agent can; one of before cannot.

    Raises:
        DeviceError: it was lost, or the step failed in it.
    """
    long = expected_seconds > _LONG_STEP_SECONDS
    layers = request.layers and session.hello.facts.get(MEASURES_LAYERS) == "yes"
    task = Measure(
        batch_size=batch_size,
        device_seconds=MEASURE_SECONDS if request.steps is None else _UNLIMITED_SECONDS,
        steps=request.steps or MAX_STEPS,
        warm_up_steps=_SHORT_WARM_UP if long else WARM_UP_STEPS,
        warm_up_batch_size=request.batches[0] if long else None,
        restore=False,
        layers=layers,
        cycle_steps=0 if not cycles else CYCLE_STEPS if not long else LONG_CYCLE_STEPS,
    )
    await session.send(task, Deadline(_WATCHDOG_SECONDS))
    measured = await session.expect(Measured, Deadline(_WATCHDOG_SECONDS))
    if why := screen_measured(task, measured):
        raise DeviceFailed(f"{session.device}: its measurement of batches of {batch_size} is refused: {why}")
    return measured


def machine_request(request: CalibrationRequest, name: str = "calibrate", machines: int = 1) -> ArrayRequest:
    """Return the array of virtual machines that `request` is measured on; `name` begins its name."""
    config = ArrayConfig.model_validate(
        {
            "name": f"{name}-{os.getpid()}",
            "engine": "qemu",
            "memory": f"{request.machine_bytes} B",
            "devices": [{"profile": PROFILE, "count": machines}],
        }
    )
    return ArrayRequest(config, DataSection(source=source_of(request)), request.seed)


def _table(
    hello: Hello,
    request: CalibrationRequest,
    key: CalibrationKey,
    image: str,
    rows: Sequence[CalibrationRow],
    answers: Sequence[Measured],
) -> CalibrationTable:
    return CalibrationTable(
        format=FORMAT,
        model=key.model,
        arguments=dict(key.arguments),
        source_sha256=key.source_sha256,
        input_shape=key.input_shape,
        classes=request.facts.classes,
        parameters=request.facts.parameters,
        clock=hello.clock,
        core=key.core,
        image=image,
        versions=Versions(*(hello.facts[name] for name in Versions.__struct_fields__)),
        seed=request.seed,
        encode_seconds=tuple(answer.encode_seconds for answer in answers),
        memory_source=answers[-1].peak_memory_source,
        rows=tuple(rows),
    )


def source_of(request: CalibrationRequest) -> str:
    """Return the name of the data set to measure with: noise of the model's shape."""
    return synthetic_source(request.input_shape, request.facts.classes)


class CalibrationOutcome(msgspec.Struct, frozen=True):
    """One batch size in `csd-emu calibrate`: seconds of the median step, per phase, on two cores.

    `reference_seconds` are as measured, `profile_seconds` those of a drive of the report's profile; on a real drive
    both are the same. `error_estimate` is how far the table would be off here without this row, null with fewer than
    three rows; `spread` the distance of the steps' quartiles over their median. `layers` are of the reference seconds,
    null if they were not measured.
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


class VerifiedRow(msgspec.Struct, frozen=True):
    """One row that was measured again; `relative_difference` is measured / table - 1, of seconds per step."""

    batch_size: int
    table_seconds: float
    measured_seconds: float
    relative_difference: float


class CalibrationReport(msgspec.Struct, frozen=True):
    """`csd-emu calibrate`: the table, and what of it was measured again.

    `core` and `clock` say what was measured: the counted reference core of a virtual machine, or a real `drive` (empty
    of a virtual one) by the wall's. `confirmed` is false if a row of `verified` differs by more than `tolerance`.
    `wall_seconds` is the cost of the command.
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
"""Measures a table: `calibrate`, or `RealDrive.measure`."""


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
        CsdError: it could not be measured, or its figures break the rules of a table; nothing is kept.
    """
    begin = time.monotonic()
    table = measure(request, paths, progress)
    path = CalibrationStore(paths.calibration).save(table, output)
    return make_report(table, path, [], time.monotonic() - begin, drive)


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

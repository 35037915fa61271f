"""Measurement of a calibration table on one drive: seconds, cycles, layers and memory of each batch size."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from csd_emu.config.array_file import ArrayConfig
from csd_emu.cycles.plugin_build import CyclePlugin
from csd_emu.profiles.calibration import (
    FORMAT,
    CalibrationKey,
    CalibrationRow,
    CalibrationTable,
    Versions,
    row_mark,
)
from csd_emu.util.deadline import Deadline
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from firmware_agent.common.errors import DeviceFailed, EnvironmentUnfit
from firmware_agent.common.frames.frame_fields import MEASURES_LAYERS, WARM_UP_STEPS
from firmware_agent.common.frames.measure_frames import Measure, Measured
from firmware_agent.common.frames.session_frames import Hello, Job
from host.app.cycle_counter import CycleCounter
from host.config.calibration_request import CalibrationRequest
from host.core.datasets import load_dataset
from host.core.table_plan import MAX_STEPS, MEASURE_SECONDS
from host.fleet.device_session import DeviceSession
from host.fleet.lifecycle import ArrayRequest, StartedArray
from host.fleet.shards import deal_out
from host.fleet.temporary_array import run_on_machines
from host.training.round_exchange import prepare_device
from host.training.screening import screen_measured

if TYPE_CHECKING:
    from csd_emu.engines.qemu.qemu_engine import QemuEngine

log = logging.getLogger(__name__)
# The reference core itself; the table's seconds are scaled for a profile when they are looked up.
PROFILE = "generic-a53"
# From so many seconds per step on, the warm-up takes the smallest batch: what it is for is the optimiser's state.
_LONG_STEP_SECONDS, _SHORT_WARM_UP = 5.0, 1
_UNLIMITED_SECONDS = 3600.0
# Small, so that weights stay finite; it changes no count.
LEARNING_RATE, MOMENTUM = 1e-4, 0.9
# Whole steps that the core model sees at most: an interrupt is a large part of a short one.
CYCLE_STEPS = 15
# Records of a job that a machine holds: no count depends on their values.
_MOST_RECORDS = 64
# Wall time after which a silent drive counts as dead: a step of a large model takes many minutes.
_WATCHDOG_SECONDS = 4 * 3600.0


def calibrate(request: CalibrationRequest, paths: Paths, progress: Progress) -> CalibrationTable:
    """Start one virtual machine, measure every batch size of `request` on it, and end it.

    Raises:
        ConfigurationError: the profile whose core is asked for has none that can be modelled.
        EnvironmentUnfit: QEMU or libvirt is missing.
        DeviceError: the machine did not come up, or the model does not train there.
    """
    plugin = _build_plugin(request, paths) if request.cycles else None

    async def work(started: StartedArray, engine: QemuEngine) -> CalibrationTable:
        session = next(iter(started.fleet.sessions().values()))
        counter = None if plugin is None else CycleCounter(started.handles[0].plan.marks, plugin.parameters.digest)
        return await measure_table(session, request, engine.image_hash, progress, counter=counter)

    return run_on_machines(machine_request(request), paths, progress, work, plugin)


def _build_plugin(request: CalibrationRequest, paths: Paths) -> CyclePlugin | None:
    """Return the core model; None, and a warning, where it cannot be built: all else is measured as ever.

    Raises:
        EnvironmentUnfit: it cannot be built, and a profile's core was asked for, of which nothing else is measured.
    """
    try:
        return CyclePlugin.build(paths.cycles, request.core)
    except EnvironmentUnfit as error:
        if request.profile is not None:
            raise
        log.warning("cycles are not counted: %s", error)
        return None


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
        key: what the table will be of; None: the request's.
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
        wall = rows[-1].wall_seconds / rows[-1].batch_size * batch_size / 60 if rows else 0.0
        progress.stage(f"{request.spec.name}: batch {batch_size}" + (f", some {wall:.0f} minutes" if wall >= 1 else ""))
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
    job = (
        request.job.frame
        if request.job
        else Job(
            model=request.spec.name,
            arguments=dict(request.key.arguments),
            source=request.spec.source,
            input_scale=load_dataset(request.data.source, request.seed).input_scale,
            seed=request.seed,
            learning_rate=LEARNING_RATE,
            momentum=MOMENTUM,
            batch_size=request.batches[0],
        )
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
    task = Measure(
        batch_size=batch_size,
        device_seconds=MEASURE_SECONDS if request.steps is None else _UNLIMITED_SECONDS,
        steps=request.steps or MAX_STEPS,
        warm_up_steps=_SHORT_WARM_UP if long else WARM_UP_STEPS,
        warm_up_batch_size=request.batches[0] if long else None,
        restore=False,
        layers=request.layers
        and (request.job is None or request.job.layers)
        and session.hello.facts.get(MEASURES_LAYERS) == "yes",
        cycle_steps=CYCLE_STEPS if cycles else 0,
        threads=request.threads,
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
    return array_request(config, request)


def array_request(config: ArrayConfig, request: CalibrationRequest) -> ArrayRequest:
    """Return what `request` is measured on: the array `config` of one kind of drives, with a few records each."""
    dataset = load_dataset(request.data.source, request.seed, request.data.input)
    few = replace(dataset, fields={name: column[:_MOST_RECORDS] for name, column in dataset.fields.items()})
    dealt = deal_out(few, request.data, config.list_nodes(), request.seed)
    return ArrayRequest(config, request.data, request.seed, dealt=dealt, dataset=dataset)


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
        versions=Versions(**{name: hello.facts[name] for name in Versions.__struct_fields__ if name in hello.facts}),
        seed=request.seed,
        encode_seconds=tuple(answer.encode_seconds for answer in answers),
        memory_source=answers[-1].peak_memory_source,
        rows=tuple(rows),
        task=key.task,
    )

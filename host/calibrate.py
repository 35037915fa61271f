"""`csd-emu calibrate`: measure what a training step costs on one virtual drive, and keep it as a table."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from csd_emu.array import MAX_MEMORY_BYTES, ArrayConfig
from csd_emu.calibration import (
    FORMAT,
    REFERENCE_CORE,
    CalibrationKey,
    CalibrationRow,
    CalibrationTable,
    Shape,
    Versions,
    row_mark,
)
from csd_emu.deadline import Deadline
from csd_emu.engines.qemu import QemuEngine
from csd_emu.paths import Paths
from csd_emu.progress import Progress
from firmware_agent.errors import ConfigurationError
from firmware_agent.models import ModelSpec
from firmware_agent.units import format_bytes
from firmware_agent.wire import Job, Measure, Measured
from host.datasets import load_dataset, synthetic_source
from host.job import DataSection
from host.lifecycle import ArrayRequest, StartedArray
from host.machines import run_on_machines
from host.model_facts import ModelFacts, inspect_model
from host.rounds import prepare_device
from host.session import DeviceSession

# The reference core itself; the table's seconds are scaled for a profile when they are looked up.
PROFILE = "generic-a53"
MIN_BATCHES = 2
# A batch is measured for so many counted seconds, of at most so many steps.
MEASURE_SECONDS, MAX_STEPS = 2.0, 32
# From so many seconds per step on, the warm-up takes the smallest batch: what it is for is the optimiser's state.
_LONG_STEP_SECONDS = 2.0
# Small, so that weights stay finite; it changes no count.
_LEARNING_RATE, _MOMENTUM = 1e-4, 0.9
_MEMORY_STEPS = tuple(gib << 30 for gib in (2, 4, 8, 16))
# Wall time after which a silent drive counts as dead: a step of a large model takes many minutes.
_WATCHDOG_SECONDS = 4 * 3600.0


@dataclass(frozen=True)
class CalibrationRequest:
    """What to measure.

    Attributes:
        spec: the model.
        facts: of it at `input_shape`.
        input_shape: (channels, height, width).
        batches: batch sizes, increasing.
        steps: per batch; None for as many as `MEASURE_SECONDS` hold, at most `MAX_STEPS`.
        memory_bytes: DRAM of the virtual machine.
        seed: of weights, images and order.
    """

    spec: ModelSpec
    facts: ModelFacts
    input_shape: Shape
    batches: tuple[int, ...]
    steps: int | None
    memory_bytes: int
    seed: int

    @property
    def key(self) -> CalibrationKey:
        """What the table will be of."""
        return CalibrationKey.of(self.spec, self.input_shape)


def make_request(
    spec: ModelSpec,
    input_shape: Shape,
    batches: Sequence[int],
    steps: int | None = None,
    memory_bytes: int | None = None,
    seed: int = 0,
) -> CalibrationRequest:
    """Return a checked request; without `memory_bytes` the machine gets what the model seems to need.

    Raises:
        ConfigurationError: fewer than two batch sizes, one twice, or more memory than a machine can have.
        ModelError: the model does not fit the shape.
    """
    ordered = tuple(sorted(set(batches)))
    if len(ordered) < max(MIN_BATCHES, len(batches)) or ordered[0] < 1:
        raise ConfigurationError(
            f"--batches {','.join(map(str, batches))}: a table needs two or more different batch sizes of at least 1"
        )
    facts = inspect_model(spec, input_shape)
    memory = memory_bytes or _machine_memory_bytes(spec, facts, ordered[-1])
    return CalibrationRequest(spec, facts, input_shape, ordered, steps, memory, seed)


def calibrate(request: CalibrationRequest, paths: Paths, progress: Progress) -> CalibrationTable:
    """Start one virtual machine, measure every batch size of `request` on it, and end it.

    Raises:
        EnvironmentUnfit: QEMU or libvirt is missing.
        DeviceError: the machine did not come up, or the model does not train there.
    """

    async def work(started: StartedArray, engine: QemuEngine) -> CalibrationTable:
        session = next(iter(started.fleet.sessions().values()))
        return await measure_table(session, request, engine.image_hash, progress)

    return run_on_machines(_array_request(request), paths, progress, work)


async def measure_table(
    session: DeviceSession, request: CalibrationRequest, image: str, progress: Progress
) -> CalibrationTable:
    """Have one device build the model and measure every batch size; return the table.

    Raises:
        DeviceError: it was lost, or a batch failed in it.
    """
    await prepare_device(session, calibration_job(request), Deadline(_WATCHDOG_SECONDS))
    mark, rows, encodes, source = row_mark(request.key, image), [], [], ""
    for batch_size in request.batches:
        progress.stage(f"{request.spec.name}: batch {batch_size}")
        begin = time.monotonic()
        measured = await _measure(session, request, batch_size, rows)
        wall_seconds = time.monotonic() - begin
        steps = tuple(measured.step_seconds)
        rows.append(CalibrationRow(mark, batch_size, steps, measured.peak_memory_bytes, wall_seconds))
        encodes.append(measured.encode_seconds)
        source = measured.peak_memory_source
    key, facts = request.key, session.hello.facts
    return CalibrationTable(
        format=FORMAT,
        model=key.model,
        arguments=dict(key.arguments),
        source_sha256=key.source_sha256,
        input_shape=key.input_shape,
        classes=request.facts.classes,
        parameters=request.facts.parameters,
        clock=session.hello.clock,
        core=REFERENCE_CORE,
        image=image,
        versions=Versions(*(facts[name] for name in Versions.__struct_fields__)),
        seed=request.seed,
        encode_seconds=tuple(encodes),
        memory_source=source,
        rows=tuple(rows),
    )


def calibration_job(request: CalibrationRequest) -> Job:
    """Return the frame that has a drive build the model of `request`."""
    return Job(
        model=request.spec.name,
        arguments=dict(request.key.arguments),
        source=request.spec.source,
        image_scale=load_dataset(_source(request), request.seed).image_scale,
        seed=request.seed,
        learning_rate=_LEARNING_RATE,
        momentum=_MOMENTUM,
        batch_size=request.batches[0],
    )


async def _measure(
    session: DeviceSession, request: CalibrationRequest, batch_size: int, rows: Sequence[CalibrationRow]
) -> Measured:
    """Measure one batch size; `rows` are those of the smaller ones."""
    long = bool(rows) and rows[-1].seconds.total / rows[-1].batch_size * batch_size > _LONG_STEP_SECONDS
    seconds = 3600.0 if request.steps is not None else MEASURE_SECONDS
    task = Measure(
        batch_size=batch_size,
        device_seconds=seconds,
        steps=request.steps or MAX_STEPS,
        warm_up_steps=1 if long else 5,
        warm_up_batch_size=request.batches[0] if long else None,
        restore=False,
    )
    await session.send(task, Deadline(_WATCHDOG_SECONDS))
    return await session.expect(Measured, Deadline(_WATCHDOG_SECONDS))


def _array_request(request: CalibrationRequest) -> ArrayRequest:
    config = ArrayConfig.model_validate(
        {
            "name": f"calibrate-{os.getpid()}",
            "engine": "qemu",
            "memory": f"{request.memory_bytes} B",
            "devices": [{"profile": PROFILE}],
        }
    )
    return ArrayRequest(config, DataSection(source=_source(request)), request.seed)


def _source(request: CalibrationRequest) -> str:
    return synthetic_source(request.input_shape, request.facts.classes)


def _machine_memory_bytes(spec: ModelSpec, facts: ModelFacts, largest_batch: int) -> int:
    """Return one of a few sizes, for each size needs a template of its own."""
    needed = facts.memory_bytes(largest_batch)
    for size in _MEMORY_STEPS:
        if needed <= size:
            return size
    raise ConfigurationError(
        f"model {spec.name!r} at batch {largest_batch} seems to need {format_bytes(needed)} of memory, a drive has "
        f"{format_bytes(MAX_MEMORY_BYTES)} at most; take smaller batches, or name a size with --memory to try"
    )


__all__ = ["CalibrationRequest", "Callable", "calibrate", "calibration_job", "make_request", "measure_table"]

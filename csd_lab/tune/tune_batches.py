"""`csd-emu tune`: from calibration tables to batches and shards; measures a table that is missing, if asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
from msgspec import structs

from csd_emu.profiles.calibration import CalibrationStore, ModelTables
from csd_emu.profiles.profile import End, RatioName
from csd_emu.util.node_names import HOST
from csd_emu.util.paths import Paths
from csd_emu.util.progress import Progress
from csd_lab.simulate.host_worth import host_worth
from csd_lab.tune.equal_batches import plan_equal
from csd_lab.tune.tune_report import TunedDevice, TuneReport
from firmware_agent.common.errors import CalibrationError, ConfigurationError
from host.app.load_inputs import choose_objective, load_job_dataset
from host.config.array_files import read_array
from host.config.calibration_request import CalibrationRequest, make_request
from host.config.job_file import load_job
from host.config.plugins.plugin_section import UserSection
from host.config.resolve import load_plugins
from host.core.figure_bands import Band, span_of
from host.core.model_facts import ModelFacts, exchange_seconds, inspect_load, inspect_model
from host.core.tuning.speed_table import SpeedTable
from host.core.tuning.stannis_rule import BALANCED
from host.fleet.shards import deal_out
from host.policies.batching.device_speeds import DeviceClass, device_classes, speed_tables
from host.policies.batching.memory_limit import RESERVE_BYTES
from host.policies.batching.stannis import BatchPlan, Overflow, ShardPlan, cost_batches, plan_batches, plan_shards
from host.training.job_inputs import JobData
from host.training.sampler import EpochQueue
from host.training.sync_plan import Records

# Batches that are measured for a missing table: the knee of most models, on both sides of torch's change of kernels.
# Not 1: batch normalisation needs more than one value per channel.
_BATCHES = (2, 4, 8, 15, 16, 32)
# A smaller part of the batch is worth a hint if it is faster by so much.
_HINT_GAIN = 0.05
_SHOWN_NAMES = 4


@dataclass(frozen=True)
class TuneRequest(JobData):
    """A synchronous job, read and checked."""

    @property
    def shard_bytes(self) -> int:
        """Bytes of the largest shard."""
        return self.records.shard_bytes


def read_tune(job_path: Path, array_path: Path) -> TuneRequest:
    """Read the files.

    Raises:
        ConfigurationError: a file breaks a rule, or the job is not synchronous.
    """
    config = read_array(array_path)
    job, spec = load_job(job_path)
    if job.mode != "sync":
        raise ConfigurationError(f"{job_path}: mode: batches are tuned for synchronous training; write mode: sync")
    plugins, dataset = load_plugins(job, job_path), load_job_dataset(job)  # one that is broken is said now
    dealt = deal_out(dataset, job.data.resolved(job.mode), config.list_nodes(), job.seed, plugins.partition)
    return TuneRequest(config, job, spec, dataset, choose_objective(job, dataset, plugins), dealt)


@dataclass(frozen=True)
class _Planned:
    """STANNIS's batches, and the class of each device that they rest on."""

    classes: Mapping[str, DeviceClass]
    plan: BatchPlan

    @property
    def tables(self) -> list[SpeedTable]:
        """The speed table of each device."""
        return list(speed_tables(self.classes).values())

    def cost(self, plan: BatchPlan) -> BatchPlan:
        """Return a plan of the same devices with the seconds that its batches take by what this one rests on."""
        return cost_batches(self.tables, plan.batches.tolist(), self.plan.sync_seconds)


def _plan(request: TuneRequest, store: CalibrationStore, ratio: RatioName, end: End | None = None) -> _Planned:
    """Plan with the figures of all profiles, or with these at one end of their bands."""
    sync = request.job.sync
    classes = device_classes(
        *(request.config, _tables(request, store), sync, ratio),
        shard_bytes=request.shard_bytes,
        end=end,
    )
    sync_seconds = exchange_seconds(request.config, inspect_load(request.spec, request.shape, request.job.freeze), end)
    plan = plan_batches(list(speed_tables(classes).values()), sync.tuning, sync_seconds)
    return _Planned(classes, plan)


def _tables(request: TuneRequest, store: CalibrationStore) -> ModelTables:
    return store.counting(request.config.core_model).of(request.spec, request.shape)


def tune(request: TuneRequest, store: CalibrationStore, ratio: RatioName) -> TuneReport:
    """Return batches and shards.

    Raises:
        CalibrationError: a table is missing or damaged.
        ConfigurationError: a device's memory does not hold the smallest batch.
    """
    planned = _plan(request, store, ratio)
    ends = {end: _plan(request, store, ratio, end) for end in get_args(End)}
    classes, plan = planned.classes, planned.plan
    equal = plan_equal(planned.tables, int(plan.batches.sum()), plan.sync_seconds)
    shards = plan_epoch(request.records, list(classes), plan.batches.tolist(), request.job.sync.overflow)
    costs, equals = ([there.cost(own) for there in ends.values()] for own in (plan, equal))
    return TuneReport(
        model=request.job.model,
        input_shape=list(request.shape),
        array=request.config.name,
        host_ratio=host_worth(_tables(request, store), request.config.host.profile, ratio) if HOST in classes else None,
        devices=[
            structs.replace(device, bands=_device_bands(number, costs, equals), batch_at_ends=_batches(number, ends))
            for number, device in enumerate(_devices(classes, plan, equal, shards))
        ],
        step_seconds=plan.step_seconds,
        exchange_seconds=plan.sync_seconds,
        imbalance=plan.imbalance,
        records_per_second=plan.records_per_second,
        equal_records_per_second=equal.records_per_second,
        equal_imbalance=equal.imbalance,
        steps_per_epoch=shards.steps,
        repeated_records=shards.repeated,
        notes=list(_notes(request, classes, plan, shards)),
        core_model=request.config.core_model,
        bands={
            "step_seconds": span_of(each.step_seconds for each in costs),
            "exchange_seconds": span_of(each.sync_seconds for each in costs),
            "records_per_second": span_of(each.records_per_second for each in costs),
            "equal_records_per_second": span_of(each.records_per_second for each in equals),
        },
    )


def plan_epoch(records: Records, nodes: Sequence[str], batches: Sequence[int], overflow: Overflow) -> ShardPlan:
    """Return what each node sees in an epoch, as a run deals it: those with records in place see these alone."""
    p, b = np.array(records.private_sizes), np.array(batches)
    others = np.array([node not in records.in_place for node in nodes])
    if not records.public_size or others.all():
        return plan_shards(batches, records.private_sizes, records.public_size, overflow)
    places = np.flatnonzero(~others).tolist()
    queue = EpochQueue(records.private_sizes, records.public_size, 0, overflow, in_place=places)
    filled, steps = plan_shards(b[others], p[others], records.public_size, overflow), queue.steps_left(batches)
    seen, public = np.minimum(p, steps * b), np.zeros_like(p)
    seen[others], public[others] = filled.private_seen, filled.public
    if steps > filled.steps:
        public[others] = np.maximum(0, steps * b - p)[others]
    return ShardPlan(
        steps=steps,
        private=p,
        private_seen=seen,
        public=public,
        repeated=max(0, int(public.sum()) - records.public_size),
        overflowing=tuple(np.flatnonzero(seen < p).tolist()),
        action="an epoch leaves some of them out, others in each epoch" if (seen < p).any() else "",
    )


def _device_bands(number: int, costs: Sequence[BatchPlan], equals: Sequence[BatchPlan]) -> dict[str, Band]:
    """Return the bands of one device: of its own batch, and of an equal one, of which it has the costs at each end."""
    return {
        "compute_seconds": span_of(float(each.compute_seconds[number]) for each in costs),
        "records_per_second": span_of(float(each.batches[number] / each.compute_seconds[number]) for each in costs),
        "equal_compute_seconds": span_of(float(each.compute_seconds[number]) for each in equals),
    }


def _batches(number: int, ends: Mapping[End, _Planned]) -> dict[str, int]:
    return {end: int(there.plan.batches[number]) for end, there in ends.items()}


def calibrate_missing(request: TuneRequest, paths: Paths, progress: Progress) -> None:
    """Measure the table that is missing on a virtual machine, and keep it among the user's own; none if it is there.

    Raises:
        EnvironmentUnfit: QEMU or libvirt is missing.
        DeviceError: the model does not train there.
    """
    store = CalibrationStore(paths.calibration)
    profiles = {node.profile for node in request.config.list_nodes()}
    if all(store.find(request.spec, request.shape, profile) is not None for profile in profiles):
        return
    from host.app.calibration_measurement import calibrate  # needs libvirt

    store.save(calibrate(missing_request(request), paths, progress))


def missing_request(request: TuneRequest) -> CalibrationRequest:
    """Return the measurement that makes the missing table: batches around the knee, as far as memory holds them."""
    facts, memory = inspect_model(request.spec, request.shape), int(request.config.memory)
    made = make_request(request.spec, request.shape, _fitting(facts, memory), memory_bytes=memory, layers=True)
    return replace(made, cycles=request.config.core_model == "cycles")


def _fitting(facts: ModelFacts, memory_bytes: int) -> tuple[int, ...]:
    fitting = tuple(batch for batch in _BATCHES if facts.memory_bytes(batch) <= memory_bytes - RESERVE_BYTES)
    if len(fitting) < 2:
        raise CalibrationError(
            "this model's batches seem not to fit into the array's memory; raise memory in the array file, or measure "
            "it with csd-emu calibrate, which takes batches of your choice"
        )
    return fitting


def _devices(
    classes: Mapping[str, DeviceClass], plan: BatchPlan, equal: BatchPlan, shards: ShardPlan
) -> list[TunedDevice]:
    devices = []
    for number, (device, known) in enumerate(classes.items()):
        batch, seconds = int(plan.batches[number]), float(plan.compute_seconds[number])
        devices.append(
            TunedDevice(
                device=device,
                profile=known.profile,
                clock=known.clock,
                batch_size=batch,
                micro_batch=known.micro_batch,
                compute_seconds=seconds,
                records_per_second=batch / seconds,
                needed_bytes=known.needed_bytes(batch),
                available_bytes=known.memory.available_bytes,
                error_estimate=None if math.isnan(known.speed.error) else known.speed.error,
                covered=_covers(known, batch),
                private_records=int(shards.private[number]),
                public_records=int(shards.public[number]),
                left_out_records=int(shards.private[number] - shards.private_seen[number]),
                equal_batch_size=int(equal.batches[number]),
                equal_compute_seconds=float(equal.compute_seconds[number]),
            )
        )
    return devices


def _notes(request: TuneRequest, classes: Mapping[str, DeviceClass], plan: BatchPlan, shards: ShardPlan) -> list[str]:
    """Return what else must be known, in sentences."""
    names, notes = list(classes), []
    if isinstance(request.job.tuner, UserSection):
        notes.append(
            f"the tuner {request.job.tuner.name} is given these batches, STANNIS's, and decides in the run itself"
        )
    if own := list(request.records.in_place):
        notes.append(
            f"{_listed(own)}: how many records lie there in place is known in a run alone; "
            f"{len(request.dataset)} are assumed, as many as the data set has"
        )
    if shards.action:
        over = _listed([names[number] for number in shards.overflowing])
        notes.append(f"{over}: more private records than equal steps have room for: {shards.action}")
    if (total := int(plan.batches.sum())) > len(request.dataset):
        notes.append(
            f"one step takes {total} records, the data set has {len(request.dataset)}: set "
            "sync.tuning.slow_batch to make steps smaller"
        )
    if plan.bounded:
        notes.append(f"{_listed([names[n] for n in plan.bounded])}: done early, at the largest batch that it may get")
    elif plan.imbalance > BALANCED:
        notes.append("whole records do not fit better at batches that are as fast; sync.tuning.slow_batch may help")
    guessed = [name for name, b in zip(names, plan.batches, strict=True) if not _covers(classes[name], int(b))]
    if guessed:
        notes.append(
            f"{_listed(guessed)}: no measured batch runs the kernels of this one; csd-emu calibrate can add some"
        )
    return notes + list(_hints(classes, plan))


def _covers(known: DeviceClass, batch: int) -> bool:
    return known.memory.table.covers(min(batch, known.micro_batch))


def _hints(classes: Mapping[str, DeviceClass], plan: BatchPlan) -> Iterator[str]:
    """Yield hints for those of whom parts of the batch, one after the other, are much faster than the batch at once."""
    gains: dict[int, dict[str, float]] = {}
    for known, batch in zip(classes.values(), plan.batches, strict=True):
        at_once = known.speed.step_seconds[: min(int(batch), known.micro_batch)]
        rates = np.arange(1, len(at_once) + 1) / at_once
        best = int(rates.argmax())
        gains.setdefault(best + 1, {})[known.profile] = float(rates[best] / rates[-1]) - 1
    for size, found in gains.items():
        faster = {profile: gain for profile, gain in found.items() if gain > _HINT_GAIN}
        if faster:
            yield (
                f"{', '.join(faster)}: up to {max(faster.values()):.0%} faster with {size} records at a time: try "
                f"sync.micro_batch: {size}"
            )


def _listed(names: Sequence[str]) -> str:
    """Return names with commas, the first few of many."""
    shown = ", ".join(names[:_SHOWN_NAMES])
    return shown if len(names) <= _SHOWN_NAMES else f"{shown} and {len(names) - _SHOWN_NAMES} more"

"""Additions of synchronous steps to the series of devices and array."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from host.core.records import RetuneRecord, RoundRecord, SendingRecord, StepRecord
from host.monitoring.metrics import metric_names as names
from host.monitoring.metrics import step_names
from host.monitoring.metrics.series_store import Store

DEVICE_COUNTERS = (step_names.RETUNES, step_names.LATE_STEPS)


def begin_steps(store: Store, mode: str, clock: str) -> None:
    """Make the array's series of a synchronous run, counters at 0 if they are new."""
    store.add(step_names.STEP, (mode,))
    store.observe(step_names.ARRAY_STEP_SECONDS, (mode, clock))
    store.add(step_names.MIXED_STEPS, ())
    store.add(step_names.COMM_CHANGES, ())
    for direction in ("up", "down"):
        store.add(step_names.CROSSED_BYTES, (direction,))


def begin_device_steps(store: Store, device: str) -> None:
    """Make a device's series, counters at 0 if they are new."""
    for metric in DEVICE_COUNTERS:
        store.add(metric, (device,))
    store.add(step_names.DISTURBANCE_WEIGHT, (device,))


def add_step(store: Store, mode: str, step: StepRecord, before: StepRecord | None, clocks: Mapping[str, str]) -> None:
    """Add a step; gauges are its own.

    Args:
        store: of the series.
        mode: of the job.
        step: that has ended.
        before: the one before it in the same round; None of a round's first.
        clocks: device -> clock of its seconds.
    """
    clock = "+".join(sorted(set(clocks.values())))
    store.observe(step_names.ARRAY_STEP_SECONDS, (mode, clock), step.array_seconds, 1)
    store.add(step_names.MIXED_STEPS, (), float(step.mixed))
    for device in _members(step):
        begin_device_steps(store, device)
    for device in {*_members(step), *(() if before is None else _members(before))}:
        store.set(step_names.DISTURBANCE_WEIGHT, (device,), step.disturbed.get(device, 0))
    for device in step.late:
        store.add(step_names.LATE_STEPS, (device,), 1)
    store.add(step_names.COMM_CHANGES, (), float(before is not None and before.sending != step.sending))
    _add_placement(store, step)
    _show(store, mode, step, clock, clocks)


def add_retune(store: Store, retune: RetuneRecord) -> None:
    """Count whose batches were changed."""
    for device in retune.before.keys() | retune.after.keys():
        changed = retune.before.get(device, 0) != retune.after.get(device, 0)
        store.add(step_names.RETUNES, (device,), float(changed))


def _members(step: StepRecord) -> list[str]:
    return [*(part.device for part in step.devices), *step.late]


def _add_placement(store: Store, step: StepRecord) -> None:
    placed = step.placement
    store.add(step_names.CROSSED_BYTES, ("up",), 0 if placed is None else placed.up_bytes)
    store.add(step_names.CROSSED_BYTES, ("down",), 0 if placed is None else placed.down_bytes)
    store.set(step_names.PS_LAYERS, (), 0 if placed is None else placed.layers)
    store.set(step_names.PS_BYTES, (), 0 if placed is None else placed.state_bytes)


def step_seconds(record: RoundRecord) -> Mapping[str, Sequence[float]]:
    """Return device -> compute seconds of each step in which it had records; empty for a round without steps."""
    found: dict[str, list[float]] = {}
    for part in (part for step in record.steps for part in step.devices if part.batch_size):
        found.setdefault(part.device, []).append(part.compute_seconds)
    return found


def share_phase(seconds: float, steps: int, own: Sequence[float]) -> list[tuple[float, int]]:
    """Return a phase's seconds of a round step by step, as values and how often each counts.

    Args:
        seconds: of all steps together.
        steps: how many there were.
        own: compute seconds of each, if they are known: the phase's share in a step is taken to be its share in all.
    """
    total = math.fsum(own)
    return [(seconds * (each / total), 1) for each in own] if total > 0 else [(seconds / steps, steps)]


def _show(store: Store, mode: str, step: StepRecord, clock: str, clocks: Mapping[str, str]) -> None:
    store.set(step_names.STEP, (mode,), step.step)
    store.set(step_names.GLOBAL_BATCH_SIZE, (), step.samples)
    store.set(step_names.LEARNING_RATE, (), step.learning_rate)
    sending = step.sending or SendingRecord("fifo")
    for metric, size in (
        (step_names.COMM_SLICE_BYTES, sending.slice_bytes),
        (step_names.COMM_CREDIT_BYTES, sending.credit_bytes),
    ):
        store.clear(metric)
        if size is not None:
            store.set(metric, (), size)
    store.set(step_names.IMBALANCE, (clock,), step.imbalance)
    store.clear(step_names.POSSIBLE_RATE)
    if step.possible_records_per_second > 0:
        store.set(step_names.POSSIBLE_RATE, (clock,), step.possible_records_per_second)
    store.clear(step_names.SLOWDOWN)
    for part in step.devices:
        store.set(names.BATCH_SIZE, (part.device,), part.batch_size)
        if part.slowdown is not None:
            store.set(step_names.SLOWDOWN, (part.device, clocks.get(part.device, clock)), part.slowdown)

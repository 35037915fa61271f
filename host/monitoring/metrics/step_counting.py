"""Additions of synchronous steps to the series of devices, array and servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from host.core.records import RetuneRecord, SendingRecord, ServersRecord, StepRecord
from host.monitoring.metrics import metric_names as names
from host.monitoring.metrics.series_store import Store


def begin_steps(store: Store, mode: str, clock: str) -> None:
    """Make the array's series of a synchronous run, counters at 0 if they are new."""
    store.observe(names.ARRAY_STEP_SECONDS, (mode, clock))
    store.begin(
        (names.STEP, (mode,)),
        (names.MIXED_STEPS, ()),
        (names.COMM_CHANGES, ()),
        *((names.CROSSED_BYTES, (direction,)) for direction in ("up", "down")),
    )


def begin_device_steps(store: Store, device: str) -> None:
    """Make a device's series, counters at 0 if they are new."""
    store.begin(*((metric, (device,)) for metric in (names.RETUNES, names.LATE_STEPS, names.DISTURBANCE_WEIGHT)))


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
    store.observe(names.ARRAY_STEP_SECONDS, (mode, clock), step.array_seconds, 1)
    for device in _members(step):
        begin_device_steps(store, device)
    shown = {*_members(step), *(() if before is None else _members(before))}
    placed = step.placement
    store.update(
        {
            (names.MIXED_STEPS, ()): step.mixed,
            (names.COMM_CHANGES, ()): before is not None and before.sending != step.sending,
            **{(names.DISTURBANCE_WEIGHT, (device,)): step.disturbed.get(device, 0) for device in shown},
            **{(names.LATE_STEPS, (device,)): 1 for device in step.late},
            (names.CROSSED_BYTES, ("up",)): 0 if placed is None else placed.up_bytes,
            (names.CROSSED_BYTES, ("down",)): 0 if placed is None else placed.down_bytes,
            (names.PS_LAYERS, ()): 0 if placed is None else placed.layers,
            (names.PS_BYTES, ()): 0 if placed is None else placed.state_bytes,
        }
    )
    _show(store, mode, step, clock, clocks)


def add_retune(store: Store, retune: RetuneRecord) -> None:
    """Count whose batches were changed."""
    devices = retune.before.keys() | retune.after.keys()
    changed = {device: retune.before.get(device, 0) != retune.after.get(device, 0) for device in devices}
    store.update({(names.RETUNES, (device,)): each for device, each in changed.items()})


def _members(step: StepRecord) -> list[str]:
    return [*(part.device for part in step.devices), *step.late]


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
    store.update(
        {
            (names.STEP, (mode,)): step.step,
            (names.GLOBAL_BATCH_SIZE, ()): step.samples,
            (names.LEARNING_RATE, ()): step.learning_rate,
            (names.IMBALANCE, (clock,)): step.imbalance,
            **{(names.BATCH_SIZE, (part.device,)): part.batch_size for part in step.devices},
        }
    )
    sending = step.sending or SendingRecord("fifo")
    for metric, size in (
        (names.COMM_SLICE_BYTES, sending.slice_bytes),
        (names.COMM_CREDIT_BYTES, sending.credit_bytes),
    ):
        store.replace(metric, {} if size is None else {(): size})
    possible = step.possible_records_per_second
    store.replace(names.POSSIBLE_RATE, {(clock,): possible} if possible > 0 else {})
    slowdowns = {part.device: part.slowdown for part in step.devices if part.slowdown is not None}
    store.replace(names.SLOWDOWN, {(name, clocks.get(name, clock)): each for name, each in slowdowns.items()})


def begin_servers(store: Store, expected: int, clock: str) -> None:
    """Make the series of a server among others, counters at 0 if they are new."""
    store.update({(names.SERVERS_EXPECTED, ()): expected, (names.SERVERS, ()): expected})
    store.begin(
        *((metric, ()) for metric in (names.SERVER_STEPS, names.ALLREDUCE_BYTES, names.RENDEZVOUS)),
        *((metric, (clock,)) for metric in (names.ALLREDUCE_SECONDS, names.SERVER_WAIT_SECONDS)),
    )


def show_servers(store: Store, servers: ServersRecord) -> None:
    """Show who took a step, and how often they met anew, as soon as it has ended, for alerts."""
    store.update({(names.RENDEZVOUS, ()): servers.meetings, (names.SERVERS, ()): len(servers.present)})


def add_servers(store: Store, servers: ServersRecord, clock: str) -> None:
    """Add what a step of a round that is over had to do with other servers; its seconds are of `clock`."""
    store.update(
        {
            (names.SERVER_STEPS, ()): 1,
            (names.ALLREDUCE_BYTES, ()): servers.sent_bytes,
            (names.ALLREDUCE_SECONDS, (clock,)): servers.reduce_seconds,
            (names.SERVER_WAIT_SECONDS, (clock,)): servers.waited_seconds,
        }
    )

"""Additions of a round's record to the series of drives, host and array."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from csd_emu.perfmodel.power import CHASSIS, COMPONENTS, MEASURED
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.records import DeviceRound, RoundRecord
from host.core.summary import SYNC
from host.monitoring.metrics import metric_names as names
from host.monitoring.metrics.calibrated import Calibrated
from host.monitoring.metrics.series_store import Store
from host.monitoring.metrics.step_counting import begin_device_steps, begin_steps, share_phase, step_seconds
from host.monitoring.run_facts import DeviceFacts

# Where an energy figure comes from.
MODEL, METER = "model", "meter"
WALL = "wall"
READ = "read"
TO_DEVICE, FROM_DEVICE = DIRECTIONS = ("to_device", "from_device")
PHASES = PhaseSeconds.__struct_fields__
# What a step consists of; weights are encoded once per round.
STEP_PHASES = ("forward", "backward", "update")


def begin_array(store: Store, mode: str, clock: str, power_cap_watts: float | None = None) -> None:
    """Make the series of array and host, counters at 0 if they are new; `clock` is that of the array's seconds."""
    if power_cap_watts is not None:
        store.set(names.POWER_CAP, (clock,), power_cap_watts)
    store.add(names.ROUND, (mode,))  # nothing is added: a resumed run is past round 0
    store.observe(names.ROUND_SECONDS, (mode, clock))
    store.add(names.STRAGGLERS, (mode,))
    store.add(names.WALL_SECONDS, (WALL,))
    _begin_energy(store, HOST, (*COMPONENTS, CHASSIS), clock)
    if mode == SYNC:
        begin_steps(store, mode, clock)


def begin_device(store: Store, mode: str, facts: DeviceFacts, clock: str) -> None:
    """Make the series of a drive: what is known of it, and counters, at 0 if they are new."""
    device = facts.device
    store.remove(names.DEVICE_INFO, device)
    store.set(names.DEVICE_INFO, facts.info, 1)
    for phase, scale in facts.scales.items():
        store.set(names.SCALE_RATIO, (device, phase), scale)
    for metric in (
        names.SAMPLES,
        names.STEPS,
        names.LATE_ROUNDS,
        names.NVME_BYTES,
        names.RECEIVED_BYTES,
        names.TRANSMITTED_BYTES,
    ):
        store.add(metric, (device,))
    store.add(names.NVME_SECONDS, (device, READ, facts.clock))
    for phase in PHASES:
        store.add(names.COMPUTE_SECONDS, (device, phase, facts.clock))
    for phase in STEP_PHASES:
        store.observe(names.STEP_SECONDS, (device, phase, facts.clock))
    for direction in DIRECTIONS:
        store.add(names.HOST_LINK_BYTES, (device, direction))
        store.add(names.LINK_SECONDS, (device, direction, facts.clock))
    _begin_energy(store, device, COMPONENTS, clock)
    if mode == SYNC:
        begin_device_steps(store, device)


def add_round(store: Store, mode: str, record: RoundRecord, calibrated: Calibrated) -> None:
    """Add a round whose steps were added: its drives, the energy of all nodes, and the array's own figures."""
    store.clear(names.CALIBRATED_RATE)
    for labels, rate in calibrated.records_per_second(record).items():
        store.set(names.CALIBRATED_RATE, labels, rate)
    steps = step_seconds(record)
    shown = {part.device for part in record.steps[-1].devices} if record.steps else set()
    for part in record.devices:
        _add_part(store, part)
        if part.device not in shown:  # the others' batches are those of the last step
            store.set(names.BATCH_SIZE, (part.device,), part.batch_size)
    for part in record.in_time:  # other work was thrown away, and is longer than the round
        _add_training(store, part, steps.get(part.device, ()))
    _add_energy(store, record)
    in_time = len(record.in_time)
    store.set(names.ROUND, (mode,), record.round)
    store.observe(names.ROUND_SECONDS, (mode, record.clock), record.array_seconds, 1)
    store.set(names.PARTICIPANTS, (mode,), in_time)
    store.add(names.STRAGGLERS, (mode,), len(record.devices) - in_time)
    store.set(names.ACCURACY, (), record.accuracy)
    store.set(names.LOSS, ("test",), record.test_loss)
    store.set(names.LOSS, ("train",), record.train_loss)
    store.add(names.WALL_SECONDS, (WALL,), record.wall_seconds)
    if record.machine_joules is not None:
        store.add(names.MACHINE_JOULES, (METER, WALL), record.machine_joules)


def charged_nodes(record: RoundRecord) -> Collection[str]:
    """Return the drives, and the host, to which a round charges energy."""
    return {node for node, parts in record.node_joules.items() if parts}


def _begin_energy(store: Store, node: str, components: Iterable[str], clock: str) -> None:
    store.add(names.DEVICE_SECONDS, (node, clock))
    for component in components:
        store.add(names.ENERGY_JOULES, (node, component, MODEL, clock))


def _add_part(store: Store, part: DeviceRound) -> None:
    device, clock = part.device, part.clock
    store.add(names.LATE_ROUNDS, (device,), float(part.straggler))
    store.add(names.NVME_BYTES, (device,), part.flash_read_bytes)
    store.add(names.NVME_SECONDS, (device, READ, clock), part.read_seconds)
    store.add(names.RECEIVED_BYTES, (device,), part.sent_bytes)
    store.add(names.TRANSMITTED_BYTES, (device,), part.received_bytes)
    store.add(names.HOST_LINK_BYTES, (device, TO_DEVICE), part.sent_bytes)
    store.add(names.HOST_LINK_BYTES, (device, FROM_DEVICE), part.received_bytes)
    store.add(names.LINK_SECONDS, (device, TO_DEVICE, clock), part.receive_seconds)
    store.add(names.LINK_SECONDS, (device, FROM_DEVICE, clock), part.send_seconds)
    if part.peak_memory_bytes:
        store.set(names.MEMORY_BYTES, (device,), part.peak_memory_bytes)


def _add_training(store: Store, part: DeviceRound, own_seconds: Sequence[float]) -> None:
    device, clock = part.device, part.clock
    store.add(names.SAMPLES, (device,), part.samples)
    store.add(names.STEPS, (device,), part.steps)
    for phase in PHASES:
        store.add(names.COMPUTE_SECONDS, (device, phase, clock), getattr(part.device_seconds, phase))
    if not part.steps:  # it has only exchanged weights
        return
    for phase in STEP_PHASES:
        for seconds, times in share_phase(getattr(part.device_seconds, phase), part.steps, own_seconds):
            store.observe(names.STEP_SECONDS, (device, phase, clock), seconds, times)


def _add_energy(store: Store, record: RoundRecord) -> None:
    joules = record.node_joules
    store.clear(names.POWER_WATTS)
    for node in joules.keys() | set(record.idle):
        store.add(names.DEVICE_SECONDS, (node, record.clock), record.array_seconds)
    for node, parts in joules.items():
        for component, value in parts.items():
            labels = (node, component, METER if component == MEASURED else MODEL, record.clock)
            store.add(names.ENERGY_JOULES, labels, value)
            if record.array_seconds:
                store.set(names.POWER_WATTS, labels, value / record.array_seconds)

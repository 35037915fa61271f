"""Additions of a round's record to the series of drives, host and array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import get_args

from csd_emu.config.array_file import SAMPLED
from csd_emu.perfmodel.power import CHASSIS, COMPONENTS, MEASURED
from csd_emu.profiles.profile import End
from csd_emu.util.node_names import HOST
from firmware_agent.common.frames.frame_fields import PhaseSeconds
from host.core.figure_bands import Band
from host.core.records import DeviceRound, RoundRecord
from host.core.run_stats import RunStats
from host.core.summary import SYNC
from host.monitoring.metrics import metric_names as names
from host.monitoring.metrics import service_metric_names as served
from host.monitoring.metrics.calibrated import Calibrated
from host.monitoring.metrics.metric import Metric
from host.monitoring.metrics.nvme_metrics import HEALTH_FIGURES
from host.monitoring.metrics.series_store import Labels, Store
from host.monitoring.metrics.step_counting import begin_device_steps, begin_steps, share_phase
from host.monitoring.run_facts import DeviceFacts

# Where an energy figure comes from.
MODEL, METER = "model", "meter"
WALL = "wall"
READ, WRITE = "read", "write"
TO_DEVICE, FROM_DEVICE = ("to_device", "from_device")
PHASES = PhaseSeconds.__struct_fields__
# What a step consists of; weights are encoded once per round.
STEP_PHASES = ("forward", "backward", "update")

_Figure = tuple[Metric, Labels, Callable[[DeviceRound], float]]
# What is added to which counter, or set as which gauge: labels beside device and clock, and the figure of the
# device's part in the round.
_EXCHANGED: tuple[_Figure, ...] = (
    (names.LATE_ROUNDS, (), attrgetter("straggler")),
    (names.NVME_BYTES, (), attrgetter("flash_read_bytes")),
    (names.NVME_SECONDS, (READ,), attrgetter("read_seconds")),
    (names.RECEIVED_BYTES, (), attrgetter("sent_bytes")),
    (names.TRANSMITTED_BYTES, (), attrgetter("received_bytes")),
    (names.HOST_LINK_BYTES, (TO_DEVICE,), attrgetter("sent_bytes")),
    (names.HOST_LINK_BYTES, (FROM_DEVICE,), attrgetter("received_bytes")),
    (names.LINK_SECONDS, (TO_DEVICE,), attrgetter("receive_seconds")),
    (names.LINK_SECONDS, (FROM_DEVICE,), attrgetter("send_seconds")),
)
_TRAINED: tuple[_Figure, ...] = (
    (names.SAMPLES, (), attrgetter("samples")),
    (names.STEPS, (), attrgetter("steps")),
    *((names.COMPUTE_SECONDS, (phase,), attrgetter(f"device_seconds.{phase}")) for phase in PHASES),
)
# Of a drive in service: what stands in the record's `service`.
_SERVED: tuple[_Figure, ...] = (
    (served.HOST_COMMANDS, (READ,), attrgetter("service.reads")),
    (served.HOST_COMMANDS, (WRITE,), attrgetter("service.writes")),
    (served.HOST_BYTES, (READ,), attrgetter("service.read_bytes")),
    (served.HOST_BYTES, (WRITE,), attrgetter("service.write_bytes")),
    (served.HOST_FAILED_WRITES, (), attrgetter("service.failed_writes")),
    (served.HOST_LATENCY, ("50",), attrgetter("service.p50_seconds")),
    (served.HOST_LATENCY, ("99",), attrgetter("service.p99_seconds")),
    (served.HOST_LATENCY, ("99.9",), attrgetter("service.p999_seconds")),
    (served.HOST_MEAN_LATENCY, (), attrgetter("service.mean_seconds")),
    (served.HOST_QUEUE_DEPTH, (), attrgetter("service.queue_depth")),
    (served.WRITE_AMPLIFICATION, (), attrgetter("service.write_amplification")),
    (served.DIES_BUSY, (), attrgetter("service.die_busy_share")),
    (served.TRAINING_SHARE, (), attrgetter("service.training_share")),
)


def begin_array(store: Store, mode: str, clock: str, power_cap_watts: float | None = None) -> None:
    """Make the series of array and host, counters at 0 if they are new; `clock` is that of the array's seconds."""
    if power_cap_watts is not None:
        store.set(names.POWER_CAP, (clock,), power_cap_watts)
    store.observe(names.ROUND_SECONDS, (mode, clock))
    store.begin(
        (names.ROUND, (mode,)),  # nothing is added: a resumed run is past round 0
        (names.STRAGGLERS, (mode,)),
        (names.WALL_SECONDS, (WALL,)),
        *_energy_series(HOST, (*COMPONENTS, CHASSIS), clock),
    )
    if SAMPLED in clock.split("+"):
        store.begin((names.SAMPLING_STEPS, ()), (names.SAMPLING_COUNTED_STEPS, ()))
    if mode == SYNC:
        begin_steps(store, mode, clock)


def begin_device(store: Store, mode: str, facts: DeviceFacts, clock: str) -> None:
    """Make the series of a drive: what is known of it, and counters, at 0 if they are new."""
    device = facts.device
    store.remove(names.DEVICE_INFO, device)
    store.set(names.DEVICE_INFO, facts.info, 1)
    store.update({(names.SCALE_RATIO, (device, phase)): scale for phase, scale in facts.scales.items()})
    store.begin(
        *((metric, _labels(metric, device, extra, facts.clock)) for metric, extra, _ in (*_EXCHANGED, *_TRAINED)),
        *_energy_series(device, COMPONENTS, clock),
    )
    for phase in STEP_PHASES:
        store.observe(names.STEP_SECONDS, (device, phase, facts.clock))
    if mode == SYNC:
        begin_device_steps(store, device)


def add_round(store: Store, mode: str, record: RoundRecord, calibrated: Calibrated) -> None:
    """Add a round whose steps were added: its drives, the energy of all nodes, and the array's own figures."""
    store.replace(names.CALIBRATED_RATE, calibrated.records_per_second(record))
    steps = record.step_parts
    shown = {part.device for part in record.steps[-1].devices} if record.steps else set()
    for part in record.devices:
        _count(store, part, _EXCHANGED if part.service is None else (*_EXCHANGED, *_SERVED))
        if part.peak_memory_bytes:
            store.set(names.MEMORY_BYTES, (part.device,), part.peak_memory_bytes)
        if part.health is not None:  # counters too are set: they are the drive's own
            for metric, figure in HEALTH_FIGURES.items():
                if (value := figure(part.health)) is not None:
                    store.set(metric, (part.device,), value)
        if part.device not in shown:  # the others' batches are those of the last step
            store.set(names.BATCH_SIZE, (part.device,), part.batch_size)
    for part in record.in_time:  # other work was thrown away, and is longer than the round
        _count(store, part, _TRAINED)
        store.update({(names.CLIENT_METRIC, (part.device, name)): value for name, value in part.metrics.items()})
        _add_steps(store, part, [step.compute_seconds for step in steps.get(part.device, ())])
    _add_energy(store, record)
    in_time = len(record.in_time)
    store.observe(names.ROUND_SECONDS, (mode, record.clock), record.array_seconds, 1)
    store.update(
        {
            (names.ROUND, (mode,)): record.round,
            (names.PARTICIPANTS, (mode,)): in_time,
            (names.STRAGGLERS, (mode,)): len(record.devices) - in_time,
            (names.ACCURACY, ()): record.accuracy,
            (names.LOSS, ("test",)): record.test_loss,
            (names.LOSS, ("train",)): record.train_loss,
            (names.WALL_SECONDS, (WALL,)): record.wall_seconds,
        }
    )
    if record.machine_joules is not None:
        store.add(names.MACHINE_JOULES, (METER, WALL), record.machine_joules)
    noise = record.gradient_noise_records
    store.replace(names.GRADIENT_NOISE, {} if noise is None else {(): noise})
    if (sampling := record.sampling) is not None:
        store.update(
            {
                (names.SAMPLING_STEPS, ()): sampling.steps,
                (names.SAMPLING_COUNTED_STEPS, ()): sampling.counted_steps,
                (names.SAMPLING_ERROR, ("interval",)): sampling.error,
                (names.SAMPLING_ERROR, ("starts",)): sampling.start_share,
                (names.SAMPLING_MISSING, ()): len(sampling.not_counted),
            }
        )


def show_bands(store: Store, run: RunStats, clock: str) -> None:
    """Show between what a run's seconds and joules may lie; nothing if a round's bands are not known."""
    nodes, clocks = run.device_bands.items(), {node: "+".join(sorted(of.clocks)) for node, of in run.devices.items()}
    series: dict[Metric, list[tuple[Labels, str, Band | None]]] = {
        names.ARRAY_BAND_SECONDS: [((), clock, run.bands.get("array_seconds"))],
        names.COMPUTE_BAND_SECONDS: [((node,), clocks.get(node, ""), own.get("device_seconds")) for node, own in nodes],
        names.ENERGY_BAND_JOULES: [((node,), clock, own.get("energy_joules")) for node, own in nodes],
    }
    for metric, bands in series.items():
        ends = ((node, end, of, band) for node, of, band in bands if band is not None for end in get_args(End))
        store.replace(metric, {(*node, end, of): getattr(band, end) for node, end, of, band in ends})


def _energy_series(node: str, components: Iterable[str], clock: str) -> list[tuple[Metric, Labels]]:
    return [
        (names.DEVICE_SECONDS, (node, clock)),
        *((names.ENERGY_JOULES, (node, component, MODEL, clock)) for component in components),
    ]


def _count(store: Store, part: DeviceRound, series: Iterable[_Figure]) -> None:
    figures = (
        (metric, _labels(metric, part.device, extra, part.clock), figure(part)) for metric, extra, figure in series
    )
    store.update({(metric, labels): float(value) for metric, labels, value in figures})


def _labels(metric: Metric, device: str, extra: Labels, clock: str) -> Labels:
    return (device, *extra, clock) if "clock" in metric.labels else (device, *extra)


def _add_steps(store: Store, part: DeviceRound, own_seconds: Sequence[float]) -> None:
    if part.steps:  # else it has only exchanged weights
        for phase in STEP_PHASES:
            for seconds, times in share_phase(getattr(part.device_seconds, phase), part.steps, own_seconds):
                store.observe(names.STEP_SECONDS, (part.device, phase, part.clock), seconds, times)


def _add_energy(store: Store, record: RoundRecord) -> None:
    nodes, seconds = record.node_joules, record.array_seconds
    store.update({(names.DEVICE_SECONDS, (node, record.clock)): seconds for node in nodes.keys() | set(record.idle)})
    joules = {
        (node, component, METER if component == MEASURED else MODEL, record.clock): value
        for node, parts in nodes.items()
        for component, value in parts.items()
    }
    store.update({(names.ENERGY_JOULES, labels): value for labels, value in joules.items()})
    store.replace(names.POWER_WATTS, {labels: value / seconds for labels, value in joules.items()} if seconds else {})

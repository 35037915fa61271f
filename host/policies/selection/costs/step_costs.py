"""Costs of a step for many configurations at once: arrays in, arrays out. Pure.

The composition is `csd_emu.perfmodel.timeline`'s, the energy `csd_emu.perfmodel.power`'s. All transfers have the same
size s, so a shared link ends its last one at ``max over kinds j of (begin_j + s / bandwidth x drives of all kinds that
begin at begin_j or later)``. Devices of a kind differ a little, and so do steps: a kind begins to send when its
quickest device is ready, and its last transfer when its slowest one is (`Paces`). Without such differences a step is
`timeline.compose`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from csd_emu.perfmodel.fast_power import PowerFigures
from csd_emu.perfmodel.host_node import reduce_seconds, storage_of
from csd_emu.perfmodel.step import DriveFigures
from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.cluster import Cluster, Counts, Floats

Flags = npt.NDArray[np.bool]

# Standard deviations beyond which float64 knows no tail of the normal distribution.
_FAR = 40.0


@dataclass(frozen=True)
class Figures:
    """What does not change, (kinds,) each.

    Attributes:
        drive: whether it is a kind of drives.
        devices: how many there are.
        path: bandwidths and latencies of a device's own flash and link.
        power: what a device draws.
        encode_seconds: of a step.
        storage_bytes_per_second, storage_latency_seconds: with which the host reads its records, from all drives.
        servers: where there are several, of each by itself: (its kinds,) numbers of its kinds, and their figures.
    """

    cluster: Cluster
    drive: Flags
    devices: Floats
    path: DriveFigures
    power: PowerFigures
    encode_seconds: Floats
    storage_bytes_per_second: float
    storage_latency_seconds: float
    servers: tuple[tuple[Counts, Figures], ...] = ()

    @classmethod
    def of(cls, cluster: Cluster) -> Figures:
        """Return the figures of a cluster."""
        kinds = cluster.kinds
        profiles = [kind.profile for kind in kinds]
        drives = [kind.profile for kind in kinds if not kind.local for _ in kind.nodes]
        # Without drives the host's records are its own, at once.
        storage = storage_of(cluster.host, drives) if drives else None
        return cls(
            cluster,
            np.array([not kind.local for kind in kinds]),
            np.array([len(kind.nodes) for kind in kinds], np.float64),
            DriveFigures.of(profiles),
            PowerFigures.of(profiles),
            np.array([kind.encode_seconds for kind in kinds]),
            storage.bytes_per_second if storage else float("inf"),
            storage.latency_seconds if storage else 0.0,
            tuple((cluster.kinds_of(each), cls.of(cluster.of_server(each))) for each in range(len(cluster.sides))),
        )


@dataclass(frozen=True)
class Points:
    """Configurations with their batches, (rows, kinds) each.

    Attributes:
        counts: devices of each kind.
        batches: records of each of them.
        groups: (rows,) small numbers; rows of one have the same kinds and the same batches. None if nobody has grouped
            them.
    """

    counts: Counts
    batches: Counts
    groups: Counts | None = None

    def __len__(self) -> int:
        """How many."""
        return len(self.counts)

    def take(self, rows: Counts) -> Points:
        """Return some of them."""
        return Points(self.counts[rows], self.batches[rows])

    def of_groups(self, work_out: Callable[[Counts], Floats]) -> Floats:
        """Return (rows, kinds) what depends on batches alone, worked out once for each group."""
        if self.groups is None:
            return work_out(self.batches)
        first = np.zeros(int(self.groups.max()) + 1, np.int64)
        first[self.groups] = np.arange(len(self))
        return work_out(self.batches[first])[self.groups]


@dataclass(frozen=True)
class Paces:
    """How devices of a kind differ from each other, and steps from each other, (configurations, kinds) each.

    Attributes:
        late: of the slowest device of a step, over the kind's typical one, in the mean.
        early: of the quickest one.
        spread: standard deviation of the slowest one's, over the typical one's seconds.
    """

    late: Floats | float = 1.0
    early: Floats | float = 1.0
    spread: Floats | float = 0.0


@dataclass(frozen=True)
class Corrections:
    """What is believed beyond the profiles, (configurations,) or (configurations, kinds), or one number for all.

    Attributes:
        bandwidth: factor of the link's.
        overhead_seconds: of a step that has drives in it, beyond what is modelled.
        reduce: factor of the host's sum.
        active: (.., kinds) factor of the watts that a busy device draws above idle.
        idle_drives: factor of the drives' idle watts.
        idle_host: factor of the host's idle watts, chassis included.
    """

    bandwidth: Floats | float = 1.0
    overhead_seconds: Floats | float = 0.0
    reduce: Floats | float = 1.0
    active: Floats | float = 1.0
    idle_drives: Floats | float = 1.0
    idle_host: Floats | float = 1.0


@dataclass(frozen=True)
class StepCosts:
    """What a step of each configuration costs, (configurations,) float64 each.

    Attributes:
        seconds: of a step.
        joules: of a step, of everything that is counted.
        records: of a step.
        drive_joules: (configurations, kinds) of them, what drives draw for their work, idle apart: it depends on a
            kind's own count and batch alone.
        idle_watts: what is drawn all the time.
    """

    seconds: Floats
    joules: Floats
    records: Floats
    drive_joules: Floats
    idle_watts: Floats


def table_seconds(tables: list[SpeedTable], batches: Counts) -> Floats:
    """Return (configurations, kinds) seconds that tables say of batches; 0 of a batch of 0."""
    seconds = np.concatenate([part for table in tables for part in ([0.0], table.step_seconds)])
    firsts = np.cumsum([0, *(table.largest_batch + 1 for table in tables[:-1])])
    return np.asarray(seconds.take(batches + firsts))


def step_costs(
    figures: Figures,
    points: Points,
    compute: Floats,
    slowdowns: Floats | float = 1.0,
    paces: Paces | None = None,
    corrections: Corrections | None = None,
    unused_powered: bool = True,
) -> StepCosts:
    """Return what a step costs.

    Args:
        figures: of the cluster.
        points: the configurations.
        compute: (configurations, kinds) seconds in which a typical device computes its batch.
        slowdowns: (configurations, kinds) observed over expected seconds: by so much encoding takes longer as well.
        paces: how devices differ; None: not at all.
        corrections: of what profiles say; None: none.
        unused_powered: whether drives that take no part idle.
    """
    paces, corrections = paces or Paces(), corrections or Corrections()
    cluster, host = figures.cluster, figures.cluster.host
    many, each = points.counts.astype(np.float64), points.batches.astype(np.float64)
    # Sums over kinds are products with vectors: a sum along so short an axis is slow.
    drive, local, every = figures.drive * 1.0, ~figures.drive * 1.0, np.ones(len(figures.drive))
    drives = many * drive
    own_records = (many * each) @ local
    own_bytes = own_records * cluster.record_bytes
    own_reads = own_bytes / figures.storage_bytes_per_second + (own_records > 0) * figures.storage_latency_seconds
    own_late = (many * compute * paces.late) @ local
    own_spread = (many * compute * paces.spread) @ local
    last = _exchange(figures, drives, each, compute, paces, corrections)
    exchanged = _later(*last, np.maximum(own_reads, own_late), own_spread)
    reduce = reduction_seconds(figures, many, corrections)
    seconds = np.asarray(exchanged[0] + reduce + (drives @ every > 0) * corrections.overhead_seconds)

    active = _active_joules(figures, compute, np.asarray(slowdowns * (many > 0))) * corrections.active
    work = _drive_joules(figures, drives, each, active)
    moved = 2 * (drives @ every) * float(cluster.state_bytes) + own_bytes
    power = host.power
    own = (many * active) @ local + reduce * (power.core_watts.value + power.dram_watts.value)
    own = own + own_bytes * _read_joules(figures) + moved * power.link_joules_per_byte.value
    always = _idle_watts(figures, drives, corrections, unused_powered)
    joules = work @ every + own + always * seconds
    return StepCosts(seconds, joules, (many * each) @ every, work, np.broadcast_to(always, seconds.shape))


def _active_joules(figures: Figures, compute: Floats, slowdowns: Floats) -> Floats:
    """Return (configurations, kinds) joules above idle of one device that computes; one core alone encodes."""
    serial = np.minimum(compute, figures.encode_seconds * slowdowns)
    power = figures.power
    cores = power.cores * (compute - serial) + serial
    return np.asarray(power.core_watts * cores + power.dram_watts * compute)


def _drive_joules(figures: Figures, drives: Floats, batches: Floats, active: Floats) -> Floats:
    """Return (configurations, kinds) what drives draw for computing, reading and the link."""
    cluster, power = figures.cluster, figures.power
    flash = batches * (power.flash_joules_per_byte * cluster.record_bytes)
    return np.asarray(drives * (active + flash + 2 * cluster.state_bytes * power.link_joules_per_byte))


def _idle_watts(figures: Figures, drives: Floats, corrections: Corrections, unused_powered: bool) -> Floats:
    """Return (configurations,) what is drawn all the time, or one number for all."""
    host = figures.cluster.host
    powered = figures.devices * figures.drive if unused_powered else drives
    chassis = host.chassis_watts.value if host.chassis_watts is not None else 0.0
    always = (host.power.idle_watts.value + chassis) * corrections.idle_host
    return np.asarray((powered @ figures.power.idle_watts) * corrections.idle_drives + always)


def reduction_seconds(figures: Figures, counts: Floats | Counts, corrections: Corrections) -> Floats:
    """Return (configurations,) how long the host sums and steps, see `csd_emu.perfmodel.host_node.reduce_seconds`."""
    step = reduce_seconds(figures.cluster.gradient_bytes, 0)
    gradient = reduce_seconds(figures.cluster.gradient_bytes, 1) - step
    return np.asarray((step + gradient * counts @ np.ones(counts.shape[1])) * corrections.reduce)


def _read_joules(figures: Figures) -> float:
    """Return the joules of a byte that the host reads from its drives: its records lie on all of them, equally."""
    weights = figures.devices * figures.drive
    if not weights.any():
        return 0.0
    power = figures.power
    return float((weights * (power.flash_joules_per_byte + power.link_joules_per_byte)).sum() / weights.sum())


def _exchange(
    figures: Figures, drives: Floats, batches: Floats, compute: Floats, paces: Paces, corrections: Corrections
) -> tuple[Floats, Floats]:
    """Return (configurations,) when the last drive's send has arrived, and its standard deviation."""
    cluster, size = figures.cluster, float(figures.cluster.state_bytes)
    present, every = drives > 0, np.ones(drives.shape[1])
    host_latency = cluster.link.latency_seconds if size else 0.0
    own = size / figures.path.link_bytes_per_second
    fixed, each = before_computing(figures, drives @ every, batches, corrections)
    typical = np.where(present, fixed + compute, -np.inf)
    last, variance = np.zeros(len(drives)), np.zeros(len(drives))
    for kind in np.flatnonzero(figures.drive).tolist():
        here = present[:, kind]
        begin = np.where(here, typical[:, kind], 0.0)
        later = (drives * (typical >= begin[:, None])) @ every - drives[:, kind]
        early = begin + compute[:, kind] * (_column(paces.early, kind) - 1)
        late = begin + compute[:, kind] * (_column(paces.late, kind) - 1)
        spread = compute[:, kind] * _column(paces.spread, kind)
        tail = each
        if cluster.link.shared:
            first = early + (drives[:, kind] + later) * tail
            end = late + np.maximum((1 + later) * tail, own[kind])
        else:
            first, end = early + tail, late + np.maximum(tail, own[kind])
        last, variance = _later(last, variance, np.where(here, end + host_latency, 0.0), np.where(here, spread, 0.0))
        last = np.maximum(last, np.where(here, first + host_latency, 0.0))
    return last, variance


def before_computing(
    figures: Figures, drives: Floats, batches: Floats | Counts, corrections: Corrections
) -> tuple[Floats, Floats]:
    """Return when devices begin to send, computing apart, and for how long the host's side carries one send.

    Args:
        figures: of the cluster.
        drives: (configurations,) how many take part.
        batches: (configurations, kinds) records.
        corrections: of the link.

    Returns:
        (configurations, kinds) and (configurations,) seconds.
    """
    cluster, size = figures.cluster, float(figures.cluster.state_bytes)
    each = np.broadcast_to(size / (cluster.link.bytes_per_second * np.asarray(corrections.bandwidth)), drives.shape)
    carried = drives * each if cluster.link.shared else each
    received = np.maximum(carried[:, None], size / figures.path.link_bytes_per_second)
    latency = 2 * figures.path.link_latency_seconds + cluster.link.latency_seconds if size else 0.0
    read = batches * cluster.record_bytes / figures.path.flash_bytes_per_second + figures.path.flash_latency_seconds
    return np.asarray(received + latency + read), np.asarray(each)


def _column(values: Floats | float, kind: int) -> Floats | float:
    return values if isinstance(values, float | int) else values[..., kind]


def _later(first: Floats, first_spread: Floats, other: Floats, other_spread: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of the later of two moments that are independent and normal (Clark 1961)."""
    theta = np.hypot(first_spread, other_spread)
    if not theta.any():
        return np.maximum(first, other), theta
    safe = np.where(theta > 0, theta, 1.0)
    with np.errstate(over="ignore"):  # of the smallest spreads: as far apart as can be
        alpha = np.clip((first - other) / safe, -_FAR, _FAR)
    share, density = ndtr(alpha), np.exp(-(alpha**2) / 2) / np.sqrt(2 * np.pi)
    mean = first * share + other * (1 - share) + safe * density
    # Centred on the later one, so that nothing cancels.
    top = np.maximum(first, other)
    a, b, m = first - top, other - top, mean - top
    square = (a**2 + first_spread**2) * share + (b**2 + other_spread**2) * (1 - share) + (a + b) * safe * density
    spread = np.sqrt(np.maximum(square - m**2, 0.0))
    return np.where(theta > 0, mean, top), np.where(theta > 0, spread, 0.0)

"""Costs of a step for many configurations at once: arrays in, arrays out. Pure.

The composition is that of `csd_emu.perfmodel.kind_steps`, the energy `csd_emu.perfmodel.power`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.host_node import reduce_seconds, storage_of
from csd_emu.perfmodel.host_only import Storage
from csd_emu.perfmodel.kind_steps import KindWork, Paces, last_send
from csd_emu.perfmodel.power import PowerFigures
from csd_emu.perfmodel.step import DriveFigures
from host.core.tuning.speed_table import SpeedTable
from host.policies.selection.cluster import Cluster, Counts, Floats

Flags = npt.NDArray[np.bool_]
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True)
class Figures:
    """What does not change, (kinds,) each.

    Attributes:
        drive: whether it is a kind of drives.
        devices: how many there are.
        path: bandwidths and latencies of a device's own flash and link.
        power: what a device draws.
        encode_seconds: of a step.
        storage: all drives, from which the host reads its records.
        servers: where there are several, of each by itself: (its kinds,) numbers of its kinds, and their figures.
    """

    cluster: Cluster
    drive: Flags
    devices: Floats
    path: DriveFigures
    power: PowerFigures[Floats]
    encode_seconds: Floats
    storage: Storage
    servers: tuple[tuple[Counts, Figures], ...] = ()

    @classmethod
    def of(cls, cluster: Cluster) -> Figures:
        """Return the figures of a cluster."""
        kinds = cluster.kinds
        profiles = [kind.profile for kind in kinds]
        drives = [kind.profile for kind in kinds if not kind.local for _ in kind.nodes]
        # Without drives the host's records are its own, at once.
        storage = storage_of(cluster.host, drives) if drives else Storage(1, np.inf, np.inf, 0.0)
        return cls(
            cluster,
            np.array([not kind.local for kind in kinds]),
            np.array([len(kind.nodes) for kind in kinds], np.float64),
            DriveFigures.of(profiles),
            PowerFigures.of(profiles),
            np.array([kind.encode_seconds for kind in kinds]),
            storage,
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
        idle_watts: what is drawn all the time.
    """

    seconds: Floats
    joules: Floats
    records: Floats
    idle_watts: Floats


def table_seconds(tables: list[SpeedTable], batches: Counts) -> Floats:
    """Return (configurations, kinds) seconds that tables say of batches; 0 of a batch of 0."""
    seconds = np.concatenate([part for table in tables for part in ([0.0], table.step_seconds)])
    return np.asarray(seconds.take(batches + np.cumsum([0, *(table.largest_batch + 1 for table in tables[:-1])])))


def step_costs(
    figures: Figures,
    points: Points,
    compute: Floats,
    slowdowns: Floats | float = 1.0,
    paces: Paces | None = None,
    corrections: Corrections | None = None,
    unused_powered: bool = True,
) -> StepCosts:
    """Return what a step costs, of several servers that of all together.

    Each server's part is that of an array by itself. All wait for the slowest, then add up with each other, and whoever
    waits idles. A server of which no drive takes part has nothing to do but to add up with the others.

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
    if not figures.servers:
        return _array_costs(figures, points, compute, slowdowns, paces, corrections, unused_powered)
    parts = []
    for kinds, of_server in figures.servers:
        own = Points(points.counts[:, kinds], points.batches[:, kinds])
        slowed, active = _columns(slowdowns, kinds), _columns(corrections.active, kinds)
        pace = Paces(_columns(paces.late, kinds), _columns(paces.early, kinds))
        believed = replace(corrections, active=active)
        part = _array_costs(of_server, own, compute[:, kinds], slowed, pace, believed, unused_powered)
        busy = own.counts.any(axis=1)
        parts.append(replace(part, seconds=part.seconds * busy, joules=part.joules * busy))
    seconds = np.max([part.seconds for part in parts], axis=0) + figures.cluster.between_seconds
    records, idle_watts = (
        np.sum([getattr(part, name) for part in parts], axis=0) for name in ("records", "idle_watts")
    )
    waiting = sum(part.idle_watts * (seconds - part.seconds) for part in parts)
    return StepCosts(seconds, np.asarray(sum(part.joules for part in parts) + waiting), records, idle_watts)


def _columns(values: Floats | float, kinds: Counts) -> Floats | float:
    return values if isinstance(values, float | int) else values[..., kinds]


def _array_costs(
    figures: Figures,
    points: Points,
    compute: Floats,
    slowdowns: Floats | float,
    paces: Paces,
    corrections: Corrections,
    unused_powered: bool,
) -> StepCosts:
    """Return what a step costs one server."""
    cluster, host = figures.cluster, figures.cluster.host
    many, each = points.counts.astype(np.float64), points.batches.astype(np.float64)
    # Sums over kinds are products with vectors: a sum along so short an axis is slow.
    drive, local, every = figures.drive * 1.0, ~figures.drive * 1.0, np.ones(len(figures.drive))
    drives = many * drive
    own_bytes = (many * each) @ local * cluster.record_bytes
    own_reads = figures.storage.read_seconds(own_bytes)
    own_late = (many * compute * paces.late) @ local
    work = KindWork(drives, cluster.state_bytes, each * cluster.record_bytes, compute)
    last = last_send(work, figures.path, cluster.link, paces, corrections.bandwidth)
    exchanged = np.maximum.reduce([last, own_reads, own_late])
    optimiser, with_one = (reduce_seconds(cluster.gradient_bytes, gradients) for gradients in (0, 1))
    reduce = (optimiser + (with_one - optimiser) * (many @ every)) * corrections.reduce
    records = (many * each) @ every
    behind = records * cluster.record_seconds
    believed = exchanged + reduce + behind + (drives @ every > 0) * corrections.overhead_seconds
    seconds = np.maximum(believed, _LEAST_SECONDS)  # whatever is believed of the overhead

    power, serial = figures.power, np.minimum(compute, figures.encode_seconds * (slowdowns * (many > 0)))
    busy_cores = power.busy_core_seconds(compute, serial)
    joules = power.energy(0.0, busy_cores, compute, each * cluster.record_bytes, 2.0 * cluster.state_bytes)
    active = (joules["cpu"] + joules["dram"]) * corrections.active
    of_drives = drives * (active + joules["flash"] + joules["link"])
    moved = 2 * (drives @ every) * float(cluster.state_bytes) + own_bytes
    own = (
        (many * active) @ local
        + (reduce + behind) * (host.power.core_watts.value + host.power.dram_watts.value)
        + own_bytes * _read_joules(figures)
        + moved * host.power.link_joules_per_byte.value
    )
    always = _idle_watts(figures, drives, corrections, unused_powered)
    return StepCosts(
        seconds, of_drives @ every + own + always * seconds, records, np.broadcast_to(always, seconds.shape)
    )


def _idle_watts(figures: Figures, drives: Floats, corrections: Corrections, unused_powered: bool) -> Floats:
    """Return (configurations,) what is drawn all the time, or one number for all."""
    host = figures.cluster.host
    powered = figures.devices * figures.drive if unused_powered else drives
    chassis = host.chassis_watts.value if host.chassis_watts is not None else 0.0
    always = (host.power.idle_watts.value + chassis) * corrections.idle_host
    return np.asarray((powered @ figures.power.idle_watts) * corrections.idle_drives + always)


def _read_joules(figures: Figures) -> float:
    """Return the joules of a byte that the host reads from its drives: its records lie on all of them, equally."""
    weights = figures.devices * figures.drive
    if not weights.any():
        return 0.0
    power = figures.power
    return float((weights * (power.flash_joules_per_byte + power.link_joules_per_byte)).sum() / weights.sum())

"""The hidden world of `bench planner`: what a cluster really does, of which the planner sees trials alone. Pure.

What differs from profiles and tables is in `csd_lab.bench.planner.planner_draws`. It has its own formulas of a step and
of its energy, and shares no code with the planner's model, nor with what that is made of (`csd_emu.perfmodel`): only
profiles' figures, and types. A test compares a step without the world's own effects with the timeline and the power
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from csd_emu.profiles import Profile
from csd_lab.bench.planner.planner_draws import Draws, StepNoise, TrueSeconds, draw_noise, no_noise
from host.config.sync_section import TuningSection
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.stannis import plan_batches
from host.policies.selection.cluster import Cluster, Configuration, Counts, Floats, TrialStep

# One core adds up: a channel of DDR4-2400. Each gradient is read, and the sum read and written; then the optimiser
# reads the gradient, and reads and writes momentum and weight.
_SUM_BYTES_PER_SECOND, _SUM_TOUCHES, _OPTIMISER_TOUCHES = 19.2e9, 3, 5


@dataclass(frozen=True)
class Steps:
    """Steps of one configuration.

    Attributes:
        nodes: that take part, in the cluster's order.
        compute_seconds: (steps, nodes).
        seconds: (steps,) of the array.
        joules: (steps,) as the meter says.
    """

    nodes: tuple[str, ...]
    compute_seconds: Floats
    seconds: Floats
    joules: Floats


class World:
    """A cluster as it is."""

    def __init__(self, cluster: Cluster, draws: Draws, unused_powered: bool = True) -> None:
        """Take the cluster as the planner knows it, and what is different.

        Args:
            cluster: with a speed table for every kind.
            draws: see `csd_lab.bench.planner.planner_draws.draw`.
            unused_powered: whether drives that do not take part idle, or draw nothing.
        """
        self.cluster, self.draws, self._unused_powered = cluster, draws, unused_powered
        self.nodes = [node for kind in cluster.kinds for node in kind.nodes]
        self._number = {node: number for number, node in enumerate(self.nodes)}
        self._kind_of = np.repeat(np.arange(len(cluster.kinds)), cluster.counts)
        self._local = np.array([cluster.kinds[kind].local for kind in self._kind_of])
        profiles = [cluster.kinds[kind].profile for kind in self._kind_of]
        self._path, self._watts = _path_of(profiles), _watts_of(profiles)
        self._encode = np.array([cluster.kinds[kind].encode_seconds for kind in self._kind_of])
        drives = [profile for profile, local in zip(profiles, self._local, strict=True) if not local]
        # Records of the host lie on all drives equally, so the slowest sets the pace, as far as the host takes it in.
        slowest = min(min(each.flash_bytes_per_second.value, each.nvme_bytes_per_second.value) for each in drives)
        rate = min(cluster.host.nvme_bytes_per_second.value, len(drives) * slowest)
        self._host_reads = rate, max(each.flash_latency_seconds.value for each in drives)
        # Of each kind, as STANNIS would want it.
        self.tables = [
            SpeedTable(kind.name, np.maximum.accumulate(curve.seconds(np.arange(1, kind.speed.largest_batch + 1))))
            for kind, curve in zip(cluster.kinds, draws.curves, strict=True)
            if kind.speed is not None
        ]

    def curve_of(self, node: str) -> TrueSeconds:
        """Return what batches take on a node, undisturbed."""
        curve: TrueSeconds = self.draws.curves[int(self._kind_of[self._number[node]])]
        return curve

    def best_batches(self, configuration: Configuration, tuning: TuningSection) -> tuple[int, ...]:
        """Return the batches of each kind that STANNIS plans if it knows the true curves and the true exchange."""
        return stannis_batches(self.tables, configuration, tuning, self.exchange_seconds(configuration))

    def known_batches(self, configuration: Configuration, tuning: TuningSection) -> tuple[int, ...]:
        """Return the batches that STANNIS plans if it knows how fast the devices of each kind are in the mean."""
        means = [float(self.draws.device[self._kind_of == kind].mean()) for kind in range(len(self.tables))]
        tables = [
            SpeedTable(table.name, table.step_seconds * mean) for table, mean in zip(self.tables, means, strict=True)
        ]
        return stannis_batches(tables, configuration, tuning, self.exchange_seconds(configuration))

    def exchange_seconds(self, configuration: Configuration) -> float:
        """Return how long a step takes if nobody computes and nothing varies."""
        none = dict.fromkeys(self.first_nodes(configuration), 0)
        return float(self.run(none, no_noise(len(self.nodes))).seconds[0])

    def first_nodes(self, configuration: Configuration) -> tuple[str, ...]:
        """Return the first so many nodes of each kind."""
        kinds = zip(self.cluster.kinds, configuration, strict=True)
        return tuple(node for kind, count in kinds for node in kind.nodes[:count])

    def spread(self, nodes: Sequence[str], batches: Sequence[int]) -> dict[str, int]:
        """Return node -> batch, from the batches of the kinds."""
        return {node: int(batches[self._kind_of[self._number[node]]]) for node in nodes}

    def take(self, batches: Mapping[str, int], steps: int, generator: np.random.Generator) -> list[TrialStep]:
        """Return what so many steps with these nodes and batches cost, as the planner sees it."""
        done = self.run(batches, draw_noise(self.draws, steps, generator))
        return [
            TrialStep(dict(zip(done.nodes, compute.tolist(), strict=True)), seconds, joules)
            for compute, seconds, joules in zip(
                done.compute_seconds, done.seconds.tolist(), done.joules.tolist(), strict=True
            )
        ]

    def run(self, batches: Mapping[str, int], noise: StepNoise) -> Steps:
        """Return what steps cost, as many as `noise` has.

        Args:
            batches: node -> records per step, of those that take part; 0 records are an exchange without computing.
            noise: of all nodes of the cluster.
        """
        part = np.array(sorted(self._number[node] for node in batches))
        records = np.array([batches[self.nodes[number]] for number in part])
        compute = self._compute_seconds(part, records) * noise.device[:, part]
        local = self._local[part]
        reduce = self._reduce_seconds(len(part), bool(local.any()))
        wire = self._wire_seconds(len(part) - int(local.sum()), bool(local.any())) * noise.link
        seconds = self._step_seconds(part, records, compute, wire) + reduce
        joules = self._joules(part, records, compute, seconds, wire, reduce) * noise.meter
        return Steps(tuple(self.nodes[number] for number in part), compute, seconds, joules)

    def _compute_seconds(self, part: Counts, records: Counts) -> Floats:
        """Return (nodes,) seconds without noise."""
        seconds = np.zeros(len(part))
        for kind, curve in enumerate(self.draws.curves):
            own = (self._kind_of[part] == kind) & (records > 0)
            seconds[own] = curve.seconds(records[own])
        served = np.count_nonzero(~self._local[part])
        slowed = np.where(self._local[part], 1 + self.draws.serving * served, 1.0)
        return np.asarray(seconds * slowed * self.draws.device[part])

    def _reduce_seconds(self, gradients: int, trains: bool) -> float:
        slowed = 1 + self.draws.training_sum * trains
        touched = (_SUM_TOUCHES * gradients + _OPTIMISER_TOUCHES) * self.cluster.gradient_bytes
        return touched / _SUM_BYTES_PER_SECOND * self.draws.reduce * slowed

    def _wire_seconds(self, drives: int, trains: bool) -> float:
        """Return what the shared side of the link takes for one drive's state, one way."""
        draws = self.draws
        rate = self.cluster.link.bytes_per_second * draws.efficiency / (1 + draws.crowding * max(0, drives - 1))
        return self.cluster.state_bytes / (rate * (1 - draws.training_link * trains))

    def _step_seconds(self, part: Counts, records: Counts, compute: Floats, wire: Floats) -> Floats:
        """Return (steps,) seconds until the last send has arrived and the host has computed.

        What crosses has one size, so all that receive together end together, and the last send ends at the maximum over
        t of t + (bytes that begin at t or later) / rate (`csd_emu.perfmodel.timeline`).
        """
        local, draws, link = self._local[part], self.draws, self.cluster.link
        drives = part[~local]
        last = np.maximum(self._host_seconds(records[local], compute[:, local]), 0.0)
        if not len(drives):
            return last
        latency = draws.latency * self._path["link_latency_seconds"][drives]
        own = self.cluster.state_bytes / (
            self._path["link_bytes_per_second"][drives] * draws.own_link[self._kind_of[drives]]
        )
        shared = wire[:, None] * (len(drives) if link.shared else 1)
        received = np.maximum(shared, own) + latency + draws.latency * link.latency_seconds
        entered = received + self._read_seconds(drives, records[~local]) + compute[:, ~local] + latency
        ordered = np.sort(entered, axis=1)
        behind = np.arange(len(drives), 0, -1) if link.shared else np.ones(len(drives))
        carried = np.max(ordered + wire[:, None] * behind, axis=1)
        arrived = np.maximum(carried, np.max(entered + own, axis=1)) + draws.latency * link.latency_seconds
        return np.asarray(np.maximum(last, arrived))

    def _host_seconds(self, records: Counts, compute: Floats) -> Floats:
        """Return (steps,) seconds of the host's own part: it reads ahead while it computes."""
        if not len(records):
            return np.zeros(len(compute))
        count, (rate, latency) = int(records[0]), self._host_reads
        read = count * self.cluster.record_bytes / rate + latency * (count > 0)
        return np.asarray(np.maximum(read, compute[:, 0]))

    def _read_seconds(self, drives: Counts, records: Counts) -> Floats:
        reads = records * self.cluster.record_bytes / self._path["flash_bytes_per_second"][drives]
        return np.asarray(reads + np.where(records > 0, self._path["flash_latency_seconds"][drives], 0.0))

    def _joules(
        self, part: Counts, records: Counts, compute: Floats, seconds: Floats, wire: Floats, reduce: float
    ) -> Floats:
        """Return (steps,) joules of everything that is powered."""
        local, trains = self._local[part], bool(self._local[part].any())
        drives, own = part[~local], compute[:, ~local]
        powered = np.flatnonzero(~self._local) if self._unused_powered else drives
        draws, watts, kinds = self.draws, self._watts, self._kind_of
        read_by_host = float(records[local].sum()) * self.cluster.record_bytes
        idle = float((watts["idle_watts"] * draws.idle[kinds])[powered].sum()) * seconds
        core = (watts["core_watts"] * draws.core[kinds])[drives]
        serial = np.minimum(own, self._encode[drives] * (records[~local] > 0))
        busy = core * (watts["cores"][drives] * (own - serial) + serial)
        waits = core * draws.polling * np.maximum(0.0, seconds[:, None] - own)
        dram = (watts["dram_watts"] * draws.dram[kinds])[drives] * own
        flash = float((watts["flash_joules_per_byte"][drives] * records[~local]).sum()) * self.cluster.record_bytes
        crossed = 2 * self.cluster.state_bytes * float(watts["link_joules_per_byte"][drives].sum())
        host = self._host_joules(part, compute, seconds, wire, reduce)
        plain = self._plain_read_joules() * read_by_host if trains else 0.0
        return np.asarray(idle + (busy + waits + dram).sum(axis=1) + flash + crossed + plain + host)

    def _plain_read_joules(self) -> float:
        """Return joules per byte that the host reads from the drives, on which its records lie equally."""
        drives = ~self._local
        return float((self._watts["flash_joules_per_byte"] + self._watts["link_joules_per_byte"])[drives].mean())

    def _host_joules(self, part: Counts, compute: Floats, seconds: Floats, wire: Floats, reduce: float) -> Floats:
        host, draws, local = self.cluster.host, self.draws, self._local[part]
        busy = compute[:, local].sum(axis=1)
        serial = np.minimum(busy, self._encode[part][local].sum())
        count = int(np.count_nonzero(~local))
        polling = draws.host_polling * 2 * count * wire
        cores = host.cores.value * (busy - serial) + serial + reduce + polling
        chassis = 0.0 if host.chassis_watts is None else host.chassis_watts.value
        active = host.power.core_watts.value * cores + host.power.dram_watts.value * (busy + reduce)
        crossed = 2 * count * self.cluster.state_bytes * host.power.link_joules_per_byte.value
        idle = (host.power.idle_watts.value + chassis) * seconds
        return np.asarray(idle * draws.host_idle + active * draws.host_core + crossed)


def _path_of(profiles: Sequence[Profile]) -> dict[str, Floats]:
    names = ("flash_bytes_per_second", "flash_latency_seconds", "link_bytes_per_second", "link_latency_seconds")
    return {name: np.array([getattr(each, name).value for each in profiles]) for name in names}


def _watts_of(profiles: Sequence[Profile]) -> dict[str, Floats]:
    names = ("idle_watts", "core_watts", "dram_watts", "flash_joules_per_byte", "link_joules_per_byte")
    own = {name: np.array([getattr(each.power, name).value for each in profiles]) for name in names}
    return own | {"cores": np.array([each.cores.value for each in profiles])}


def stannis_batches(
    tables: Sequence[SpeedTable], configuration: Configuration, tuning: TuningSection, sync_seconds: float
) -> tuple[int, ...]:
    """Return the batch of each kind as STANNIS plans it, 0 for a kind that takes no part."""
    present = [number for number, count in enumerate(configuration) if count]
    own = [tables[number] for number in present for _ in range(configuration[number])]
    batches = plan_batches(own, tuning, sync_seconds).batches
    firsts = np.cumsum([0, *(configuration[number] for number in present[:-1])])
    planned = [0] * len(configuration)
    for number, first in zip(present, firsts, strict=True):
        planned[number] = int(batches[first])
    return tuple(planned)

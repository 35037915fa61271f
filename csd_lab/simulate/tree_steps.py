"""Costs of one step of all servers: `simulated_steps.ArrayStepModel` for many equal servers at once, one row each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.host_node import reduce_seconds, storage_of
from csd_emu.perfmodel.power import CHASSIS, PowerFigures, host_energy
from csd_emu.perfmodel.step import DriveFigures
from csd_emu.perfmodel.timeline import Link
from csd_lab.simulate.tree import EqualServers, Flags, Tree
from host.core.model_facts import Load
from host.core.tuning.batch_tuner import Batches, Floats


@dataclass(frozen=True)
class ServerSteps:
    """What each server does in a step before servers add up; (servers,) each if not said otherwise.

    Attributes:
        arrived_seconds: until the last gradient of its drives is there and its own part is computed.
        work_seconds: of those, reading and computing of its slowest node; the rest is its drives' link.
        sum_seconds: in which its host adds up its nodes' gradients.
        records: records in their sum.
        drive_bytes: over its drives' link, what its host reads included.
        joules: component -> what work draws; what all draw who are on is not in it.
        compute_seconds: (nodes,) forward, backward and encoding.
    """

    arrived_seconds: Floats
    work_seconds: Floats
    sum_seconds: Floats
    records: Floats
    drive_bytes: Floats
    joules: dict[str, Floats]
    compute_seconds: Floats

    @property
    def ready_seconds(self) -> Floats:
        """(servers,) until it has its sum."""
        return self.arrived_seconds + self.sum_seconds


class TreeStepModel:
    """Costs the steps of all servers. Keeps what does not change from step to step."""

    def __init__(self, tree: Tree) -> None:
        """Take the servers."""
        self._tree = tree
        self._models = [_BlockModel(block, tree.load) for block in tree.blocks]
        self._last: tuple[Batches, Floats, ServerSteps] | None = None
        self.optimiser_seconds = reduce_seconds(tree.load.gradient_bytes, 0)

    def expected_seconds(self, batches: Batches) -> Floats:
        """Return (nodes,) compute seconds of undisturbed nodes."""
        seconds = np.empty(len(batches))
        for model in self._models:
            places = model.block.places
            seconds[places] = model.expected_seconds(batches[places])
        return seconds

    def sync_seconds(self) -> float:
        """Return what the exchange adds to a step of all nodes: all of it but reading and computing."""
        active = np.ones(len(self._tree.names), np.int64)
        steps = self._cost(active, np.zeros(len(active)), reads=False)
        between = self._tree.reduce(np.ones(len(self._tree.servers), bool)).seconds / self._tree.reduce_every
        return float(steps.ready_seconds.max()) + between + self.optimiser_seconds

    def cost(self, batches: Batches, slowdowns: Floats) -> ServerSteps:
        """Return what a step costs.

        Args:
            batches: (nodes,) records per node that each holds; 0 for one that takes no part.
            slowdowns: (nodes,) what each node's seconds are multiplied by.
        """
        if self._last is not None:
            before, slowed, steps = self._last
            if np.array_equal(before, batches) and np.array_equal(slowed, slowdowns):
                return steps
        steps = self._cost(batches, slowdowns)
        self._last = batches.copy(), slowdowns.copy(), steps
        return steps

    def on_joules(self, seconds: float, on: Floats) -> dict[str, float]:
        """Return component -> what servers that are `on`, (servers,) 1 or 0, draw in `seconds` whatever they do."""
        total: defaultdict[str, float] = defaultdict(float)
        for model in self._models:
            count = float(on[model.block.servers].sum())
            for component, watts in model.idle_watts.items():
                total[component] += count * watts * seconds
        return dict(total)

    def optimiser_joules(self, on: Floats) -> dict[str, float]:
        """Return component -> what the optimisers of the servers that are `on` draw in one step."""
        total: defaultdict[str, float] = defaultdict(float)
        for model in self._models:
            count = float(on[model.block.servers].sum())
            busy = self.optimiser_seconds
            for component, joules in host_energy(model.block.nodes.host.profile, 0.0, busy, busy, 0.0).items():
                total[component] += count * joules
        return dict(total)

    def _cost(self, batches: Batches, slowdowns: Floats, reads: bool = True) -> ServerSteps:
        columns = np.zeros((5, len(self._tree.servers)))
        joules: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(len(self._tree.servers)))
        compute = np.zeros(len(batches))
        for model in self._models:
            places, servers = model.block.places, model.block.servers
            rows, inverse = _distinct(batches[places], slowdowns[places])
            steps = model.cost(batches[places[rows]], slowdowns[places[rows]], reads)
            values = steps.arrived_seconds, steps.work_seconds, steps.sum_seconds, steps.records, steps.drive_bytes
            columns[:, servers] = np.stack(values)[:, inverse]
            compute[places] = steps.compute_seconds[inverse]
            for component, each in steps.joules.items():
                joules[component][servers] = each[inverse]
        arrived, work, summed, records, crossed = columns
        return ServerSteps(arrived, work, summed, records, crossed, dict(joules), compute)


def _distinct(batches: Batches, slowdowns: Floats) -> tuple[Batches, Batches]:
    """Return rows among which each server has its equal, and for each server which of them that is.

    All that are as the last one are one row: most are, unless every node has noise of its own.
    """
    other = np.any((batches != batches[-1]) | (slowdowns != slowdowns[-1]), axis=1)
    rows = np.flatnonzero(other)
    inverse = np.zeros(len(batches), np.int64)
    inverse[rows] = np.arange(1, len(rows) + 1)
    return np.concatenate([[len(batches) - 1], rows]), inverse


class _BlockModel:
    """Costs the steps of servers with equal arrays; arrays are (rows, drives) or (rows, nodes)."""

    def __init__(self, block: EqualServers, load: Load) -> None:
        self.block, self._load, nodes = block, load, block.nodes
        profiles = nodes.profiles()
        self._table = nodes.seconds_table()
        self._encode = np.array([kind.encode_seconds for kind in nodes.kinds])[nodes.kind_of]
        self._drives, self._link = DriveFigures.of(profiles), nodes.link
        self._power, self._storage = PowerFigures.of(profiles), storage_of(nodes.host.profile, profiles)
        self._sum_seconds = reduce_seconds(load.gradient_bytes, 1) - reduce_seconds(load.gradient_bytes, 0)
        host = {name: watts for name, watts in host_energy(nodes.host.profile, 1.0, 0.0, 0.0, 0.0).items() if watts}
        self.idle_watts = host | {"idle": host.get("idle", 0.0) + float(self._power.idle_watts.sum())}
        self.idle_watts.setdefault(CHASSIS, 0.0)

    def expected_seconds(self, batches: Batches) -> Floats:
        """Return (rows, nodes) compute seconds of undisturbed nodes."""
        seconds: Floats = self._table[self.block.nodes.kind_of, batches]
        return seconds

    def cost(self, batches: Batches, slowdowns: Floats, reads: bool) -> ServerSteps:
        """Return what a step costs, (rows,) and (rows, nodes); without `reads` nobody reads."""
        nodes, load, drives = self.block.nodes, self._load, self.block.nodes.drives
        compute = self.expected_seconds(batches) * slowdowns
        active = batches[:, :drives] > 0
        records: Floats = np.asarray(batches if reads else np.zeros_like(batches), np.float64) * load.record_bytes
        read = records[:, :drives]
        flash = read / self._drives.flash_bytes_per_second + (read > 0) * self._drives.flash_latency_seconds
        own_bytes: Floats = records[:, -1] if nodes.trains else np.zeros(len(batches))
        own_read = own_bytes / self._storage.bytes_per_second + (own_bytes > 0) * self._storage.latency_seconds
        own = np.maximum(own_read, compute[:, -1]) if nodes.trains else own_read
        work = flash + compute[:, :drives]
        arrived = np.maximum(own, self._exchange(work, active))
        summed = self._sum_seconds * np.count_nonzero(batches, axis=1)
        serial: Floats = np.minimum(compute, self._encode * slowdowns * (batches > 0))
        link_bytes = 2.0 * load.state_bytes * np.count_nonzero(active, axis=1) + own_bytes
        joules = self._drive_joules(compute, serial, read, active, own_bytes)
        for component, each in self._host_joules(compute, serial, summed, link_bytes).items():
            joules[component] = joules.get(component, 0.0) + each
        longest = np.maximum(own, work.max(axis=1, initial=0.0))
        return ServerSteps(arrived, longest, summed, batches.sum(axis=1), link_bytes, joules, compute)

    def _exchange(self, work: Floats, active: Flags) -> Floats:
        """Return (rows,) when the last send has arrived, or the last drive that sends nothing has done its work."""
        size, link, figures = float(self._load.state_bytes), self._link, self._drives
        count = active.sum(axis=1, keepdims=True)
        carried = size * (count if link.shared else 1) / link.bytes_per_second
        arrives = np.maximum(carried, size / figures.link_bytes_per_second)
        received = np.where(active, arrives + link.latency_seconds + figures.link_latency_seconds, 0.0)
        ready = received + work
        begins = np.where(active, ready + figures.link_latency_seconds, -np.inf)
        alone = (begins + size / figures.link_bytes_per_second).max(axis=1, initial=-np.inf)
        sent = np.maximum(alone, _last_carried(begins, size, link)) + link.latency_seconds
        ended: Floats = np.maximum(sent, ready.max(axis=1, initial=0.0))
        return ended

    def _drive_joules(
        self, compute: Floats, serial: Floats, read: Floats, active: Flags, own_bytes: Floats
    ) -> dict[str, Floats]:
        """Return (rows,) joules of all drives together: `PowerFigures.energy`, summed, as products of matrices."""
        power, drives = self._power, self.block.nodes.drives
        work, alone = compute[:, :drives], serial[:, :drives]
        plain, size = own_bytes / drives, 2 * float(self._load.state_bytes)  # the host's records lie on all drives
        all_cores = power.core_watts * power.cores
        return {
            "cpu": work @ all_cores - alone @ (all_cores - power.core_watts),
            "dram": work @ power.dram_watts,
            "flash": read @ power.flash_joules_per_byte + plain * power.flash_joules_per_byte.sum(),
            "link": active @ (size * power.link_joules_per_byte) + plain * power.link_joules_per_byte.sum(),
        }

    def _host_joules(self, compute: Floats, serial: Floats, summed: Floats, link_bytes: Floats) -> dict[str, Floats]:
        host, trains = self.block.nodes.host.profile, self.block.nodes.trains
        none = np.zeros(len(summed))
        busy, alone = (compute[:, -1], serial[:, -1]) if trains else (none, none)
        cores = host.cores.value * (busy - alone) + alone + summed
        # Bytes and seconds only multiply watts and joules: rows of them do as well as one.
        joules = host_energy(host, 0.0, cores, busy + summed, link_bytes)  # type: ignore[arg-type]
        return {name: each + none for name, each in joules.items() if name not in ("idle", CHASSIS)}


def _last_carried(begins: Floats, size: float, link: Link) -> Floats:
    """Return (rows,) when the host's side has carried the last of transfers of one size, -inf for none.

    A link that never idles while it has work ends at the maximum of t + (bytes that begin at t or later) / bandwidth;
    transfers that are none begin at -inf, before all others.
    """
    if not link.shared:
        last: Floats = begins.max(axis=1, initial=-np.inf) + size / link.bytes_per_second
        return last
    left = size * np.arange(begins.shape[1], 0, -1) / link.bytes_per_second
    ends: Floats = (np.sort(begins, axis=1) + left).max(axis=1, initial=-np.inf)
    return ends

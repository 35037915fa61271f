"""Costs of one step of simulated nodes: seconds, energy and bytes, from batches and slowdowns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from csd_emu.perfmodel.fast_power import PowerFigures
from csd_emu.perfmodel.host_node import host_activity, reduce_seconds, storage_of
from csd_emu.perfmodel.power import host_energy, sum_energy
from csd_emu.perfmodel.step import DriveFigures, StepWork, time_step
from csd_lab.simulate.nodes import Nodes
from host.core.tuning.batch_tuner import Batches, Floats


@dataclass(frozen=True)
class SimulatedStepCost:
    """One step.

    Attributes:
        seconds: of the array.
        records: records in its gradient.
        compute_seconds: (nodes,) forward, backward and encoding.
        joules: component -> energy of everything in the array.
        link_bytes: over the host's link: messages, and records that the host reads.
    """

    seconds: float
    records: int
    compute_seconds: Floats
    joules: dict[str, float]
    link_bytes: float


class ArrayStepModel:
    """Costs the steps of one array. Keeps what does not change from step to step."""

    def __init__(self, nodes: Nodes) -> None:
        """Take the nodes."""
        profiles = nodes.profiles()
        self._nodes = nodes
        self._table = nodes.seconds_table()
        self._encode = np.array([kind.encode_seconds for kind in nodes.kinds])[nodes.kind_of]
        self._drives = DriveFigures.of(profiles)
        self._power = PowerFigures.of(profiles)
        self._storage = storage_of(nodes.host.profile, profiles)
        self._batches: Batches = np.full(len(nodes.names), -1)
        self._exchange: Floats = np.zeros(nodes.drives)
        self._reads: Floats = np.zeros(nodes.drives)
        self._last: tuple[Batches, Floats, SimulatedStepCost] | None = None

    def expected_seconds(self, batches: Batches) -> Floats:
        """Return (nodes,) compute seconds of undisturbed nodes."""
        seconds: Floats = self._table[self._nodes.kind_of, batches]
        return seconds

    def sync_seconds(self, active: Batches) -> float:
        """Return what the exchange adds to a step of these nodes: all of it but reading and computing.

        Args:
            active: (nodes,) not 0 for each that takes part.
        """
        batches, idle = np.minimum(active, 1), np.zeros(len(active))
        self._set_batches(batches)
        return self._cost(batches, idle, reads=False).seconds

    def cost(self, batches: Batches, slowdowns: Floats) -> SimulatedStepCost:
        """Return what a step costs.

        Args:
            batches: (nodes,) records per node; 0 for one that takes no part, which still draws idle power.
            slowdowns: (nodes,) what each node's seconds are multiplied by.

        Raises:
            ConfigurationError: a batch does not fit, or a slowdown is no number.
        """
        if self._last is not None:
            before, slowed, cost = self._last
            if np.array_equal(before, batches) and np.array_equal(slowed, slowdowns):
                return cost
        self._set_batches(batches)
        cost = self._cost(batches, self.expected_seconds(batches) * slowdowns, slowdowns=slowdowns)
        self._last = batches.copy(), slowdowns.copy(), cost
        return cost

    def _cost(
        self, batches: Batches, compute: Floats, slowdowns: Floats | float = 0.0, reads: bool = True
    ) -> SimulatedStepCost:
        nodes, load, drives = self._nodes, self._nodes.load, self._nodes.drives
        exchange, read = self._exchange, self._reads if reads else np.zeros(drives)
        work = StepWork(exchange, self._drives.read_seconds(read) + compute[:drives], exchange)
        own = host_activity(int(batches[-1]) if nodes.trains and reads else 0, load.record_bytes, {}, self._storage)
        own_seconds = max(own.read_seconds, float(compute[-1])) if nodes.trains else 0.0
        reduce = reduce_seconds(load.gradient_bytes, int(np.count_nonzero(batches)))
        seconds = max(own_seconds, float(time_step(work, self._drives, nodes.link).end_seconds)) + reduce
        serial = np.minimum(compute, self._encode * slowdowns * (batches > 0))
        plain = own.read_bytes / drives  # the host's records lie on all drives
        link_bytes = 2 * float(exchange.sum()) + own.read_bytes
        joules = self._power.energy(
            seconds, compute[:drives] - serial[:drives], serial[:drives], read + plain, 2 * exchange + plain
        )
        of_drives = {component: float(each.sum()) for component, each in joules.items()}
        of_host = self._host_joules(seconds, compute, serial, reduce, link_bytes)
        return SimulatedStepCost(seconds, int(batches.sum()), compute, sum_energy([of_drives, of_host]), link_bytes)

    def _host_joules(
        self, elapsed_seconds: float, compute: Floats, serial: Floats, reduce: float, link_bytes: float
    ) -> dict[str, float]:
        host = self._nodes.host.profile
        busy, alone = (float(compute[-1]), float(serial[-1])) if self._nodes.trains else (0.0, 0.0)
        cores = host.cores.value * (busy - alone) + alone + reduce
        return host_energy(host, elapsed_seconds, cores, busy + reduce, link_bytes)

    def _set_batches(self, batches: Batches) -> None:
        """Work out the bytes of each drive anew if the batches are other than before."""
        if np.array_equal(batches, self._batches):
            return
        self._nodes.check_batches(batches)
        drives, load = self._nodes.drives, self._nodes.load
        self._batches = batches.copy()
        self._exchange = np.where(batches[:drives] > 0, float(load.state_bytes), 0.0)
        self._reads = np.asarray(batches[:drives], np.float64) * load.record_bytes

"""What servers with equal arrays do in a step, side by side: seconds, bytes and energy. Arrays in, arrays out.

The drives' part is `csd_emu.perfmodel.step`. The host may compute records of its own beside them, which it reads from
them ahead of time, so of reading and computing only the longer one counts. Then it adds up all gradients, and when
servers have added up too it steps the optimiser (`csd_emu.perfmodel.host_node`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.perfmodel.host_node import reduce_seconds, storage_of
from csd_emu.perfmodel.power import CHASSIS, COMPONENTS, PowerFigures
from csd_emu.perfmodel.sharing import Floats, Link
from csd_emu.perfmodel.step import DeviceWork, DriveFigures, time_step
from csd_emu.profiles import Profile

WORK = COMPONENTS[1:]
"""What draws power while a server works: the axis of `ServerSteps.joules`."""
ALWAYS = (COMPONENTS[0], CHASSIS)
"""What draws power in a server that is on, whatever it does."""


@dataclass(frozen=True)
class StepBytes:
    """Bytes of a model and its records: of the state that crosses the link each way, of gradients, of one record."""

    state: float
    gradients: int
    record: int


@dataclass(frozen=True)
class ServerSteps:
    """What each server does in a step before servers add up; (servers,) each if not said otherwise.

    Attributes:
        arrived_seconds: until the last gradient of its drives is there and its own part is computed.
        work_seconds: of those, reading and computing of its slowest node; the rest is its drives' link.
        sum_seconds: in which its host adds up its nodes' gradients.
        link_bytes: over its drives' link, what its host reads included.
        joules: (len(WORK), servers) that this takes; what is drawn all the time is not in it.
    """

    arrived_seconds: Floats
    work_seconds: Floats
    sum_seconds: Floats
    link_bytes: Floats
    joules: Floats

    @property
    def ready_seconds(self) -> Floats:
        """(servers,) until it has its sum."""
        return self.arrived_seconds + self.sum_seconds


class ArrayStepModel:
    """Costs the steps of servers with equal arrays. Nodes are its drives, and behind them the host if it trains.

    Attributes:
        optimiser_seconds: of a step.
        optimiser_joules: (len(WORK),) that those take.
        always_watts: (len(ALWAYS),) of a server that is on, its drives included.
    """

    def __init__(self, drives: Sequence[Profile], host: Profile, link: Link, sizes: StepBytes) -> None:
        """Take one profile per drive, the host's, its side of the link, and what crosses."""
        self._count, self._link, self._sizes = len(drives), link, sizes
        self._drives, self._power, self._host = (
            DriveFigures.of(drives),
            PowerFigures.of(drives),
            PowerFigures.of([host]),
        )
        self._storage = storage_of(host, drives)
        self.optimiser_seconds = reduce_seconds(sizes.gradients, 0)
        self._sum_seconds = reduce_seconds(sizes.gradients, 1) - self.optimiser_seconds
        busy = np.full(1, self.optimiser_seconds)
        optimiser = self._host.energy(0.0, busy, busy, 0.0, 0.0)
        self.optimiser_joules = np.array([float(optimiser[name].sum()) for name in WORK])
        idle = float(self._host.idle_watts.sum() + self._power.idle_watts.sum())
        self.always_watts = np.array([idle, host.chassis_watts.value if host.chassis_watts is not None else 0.0])

    def step(self, batches: npt.NDArray[np.int64], compute: Floats, serial: Floats) -> ServerSteps:
        """Return what a step costs some servers.

        Args:
            batches: (servers, nodes) records per node; 0 for one that takes no part.
            compute: (servers, nodes) seconds in which each computes them.
            serial: (servers, nodes) of those, in which one core is busy alone.
        """
        count, load, active = self._count, self._sizes, batches > 0
        state = np.where(active[:, :count], load.state, 0.0)
        records: Floats = batches * np.float64(load.record)
        # The host's are the last column, or there is none.
        own_bytes, own_compute, own_serial = (each[:, count:].sum(axis=1) for each in (records, compute, serial))
        own = np.maximum(self._storage.read_seconds(own_bytes), own_compute)
        work = self._drives.read_seconds(records[:, :count]) + compute[:, :count]
        end = time_step(DeviceWork(state, work, state), self._drives, self._link).end_seconds
        summed = self._sum_seconds * np.count_nonzero(active, axis=1)
        link_bytes = 2 * load.state * np.count_nonzero(active[:, :count], axis=1) + own_bytes
        plain = (own_bytes / count)[:, None]  # the host's records lie on all drives
        cores = self._power.busy_core_seconds(compute[:, :count], serial[:, :count])
        own_cores = self._host.busy_core_seconds(own_compute, own_serial) + summed
        drawn = self._power.energy(0.0, cores, compute[:, :count], records[:, :count] + plain, 2 * state + plain)
        own_busy = own_compute + summed
        own_drawn = self._host.energy(0.0, own_cores[:, None], own_busy[:, None], 0.0, link_bytes[:, None])
        joules = np.stack([drawn[name].sum(axis=-1) + own_drawn[name].sum(axis=-1) for name in WORK])
        longest = np.maximum(own, work.max(axis=1, initial=0.0))
        return ServerSteps(np.maximum(own, end), longest, summed, link_bytes, joules)

"""Topology of a simulation of several servers: each with its array, in racks that a network connects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import ServersConfig
from csd_emu.perfmodel.allreduce import ALGORITHMS, AllReduce, Fabric
from csd_emu.profiles.calibration import CalibrationStore
from csd_lab.simulate.nodes import MOST_DRIVES, Nodes, make_nodes
from firmware_agent.common.errors import ConfigurationError
from host.config.sync_section import SyncSection
from host.core.model_facts import Load
from host.core.tuning.batch_tuner import Batches
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.device_speeds import RatioName

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class EqualServers:
    """Servers with equal arrays.

    Attributes:
        nodes: of each of them.
        servers: (rows,) numbers of the servers.
        places: (rows, nodes) of each node among those of the whole tree.
    """

    nodes: Nodes
    servers: Batches
    places: Batches


@dataclass(frozen=True)
class Tree:
    """Drives and hosts of all servers, in one row: server after server, each as its array has them.

    Attributes:
        servers: their names, in the order of the file.
        blocks: servers with equal arrays.
        names: (nodes,) as ``server/drive``.
        server_of: (nodes,) number of the server.
        is_drive: (nodes,) whether it is none of the hosts.
        rack_of: (servers,) number of the rack.
        fabric: between the servers.
        allreduce: by which of `csd_emu.perfmodel.allreduce.ALGORITHMS` they add up.
        reduce_every: after so many steps.
        least: with fewer servers nobody trains.
        load: what is trained.
    """

    servers: Sequence[str]
    blocks: Sequence[EqualServers]
    names: Sequence[str]
    server_of: Batches
    is_drive: Flags
    rack_of: Batches
    fabric: Fabric
    allreduce: str
    reduce_every: int
    least: int
    load: Load

    @property
    def drives(self) -> int:
        """How many drives there are."""
        return int(self.is_drive.sum())

    @property
    def trains(self) -> bool:
        """Whether any host takes part."""
        return any(block.nodes.trains for block in self.blocks)

    @property
    def tables(self) -> list[SpeedTable]:
        """The speed table of each node."""
        tables = np.empty(len(self.names), object)
        for block in self.blocks:
            own = np.empty(block.places.shape[1], object)
            own[:] = block.nodes.tables
            tables[block.places] = own
        return list(tables)

    def index(self, name: str) -> int:
        """Return the number of a node: by ``server/drive``, or by the drive's name alone that of the first server.

        Raises:
            ConfigurationError: there is none.
        """
        full = name if "/" in name else f"{self.servers[0]}/{name}"
        try:
            return self.names.index(full)
        except ValueError:
            raise ConfigurationError(
                f"disturb: {name!r} is none of the {len(self.names)} simulated nodes; a name stands for a node of the "
                f"first server, which has {self.names[0]} to {self.names[int((self.server_of == 0).sum()) - 1]}"
            ) from None

    def check_batches(self, batches: Batches) -> None:
        """Return if each node holds its batch.

        Raises:
            ConfigurationError: one does not; it is named.
        """
        for block in self.blocks:
            for server, row in zip(block.servers, np.asarray(batches)[block.places], strict=True):
                try:
                    block.nodes.check_batches(row)
                except ConfigurationError as error:
                    raise ConfigurationError(f"{self.servers[server]}: {error}") from error

    def reduce(self, present: Flags, algorithm: str | None = None) -> AllReduce:
        """Return what it costs the servers that are `present`, (servers,), to add up.

        Gradients and buffers; after several steps weights and buffers, and what the optimiser remembers.
        """
        racks = np.bincount(self.rack_of[present], minlength=1)
        size_bytes = self.load.state_bytes + (self.load.optimiser_bytes if self.reduce_every > 1 else 0)
        return ALGORITHMS[algorithm or self.allreduce](float(size_bytes), racks.tolist(), self.fabric)


def make_tree(
    config: ServersConfig,
    arrays: Mapping[str, ArrayConfig],
    load: Load,
    store: CalibrationStore,
    sync: SyncSection,
    ratio: RatioName = "middle",
) -> Tree:
    """Return the tree of a servers file.

    Args:
        config: the servers.
        arrays: path as the servers file has it -> the array.
        load: what is trained.
        store: the calibration tables.
        sync: bounds of batches.
        ratio: which end of the hosts' band.

    Raises:
        CalibrationError: a table is missing or damaged.
        ConfigurationError: the smallest batch does not fit into a device, or there are too many drives.
    """
    of_path = {path: make_nodes(array, load, store, sync, ratio) for path, array in arrays.items()}
    paths = [group.array for group in config.servers for _ in range(group.count)]
    sizes = np.array([len(of_path[path].names) for path in paths])
    if sizes.sum() > MOST_DRIVES:
        raise ConfigurationError(f"servers: {sizes.sum()} drives and hosts are more than {MOST_DRIVES}; take fewer")
    begins = np.cumsum(sizes) - sizes
    blocks = []
    for path, nodes in of_path.items():
        servers = np.flatnonzero([own == path for own in paths])
        blocks.append(EqualServers(nodes, servers, begins[servers][:, None] + np.arange(len(nodes.names))))
    drives = [np.arange(len(of_path[path].names)) < of_path[path].drives for path in paths]
    names = config.names
    return Tree(
        servers=names,
        blocks=blocks,
        names=[f"{server}/{node}" for server, path in zip(names, paths, strict=True) for node in of_path[path].names],
        server_of=np.repeat(np.arange(len(paths)), sizes),
        is_drive=np.concatenate(drives),
        rack_of=_racks(config, len(paths)),
        fabric=_fabric(config),
        allreduce=config.racks.allreduce if config.racks is not None else "ring",
        reduce_every=config.reduce_every,
        least=config.membership.min,
        load=load,
    )


def _racks(config: ServersConfig, servers: int) -> Batches:
    return np.arange(servers) // (config.racks.servers if config.racks is not None else max(servers, 1))


def _fabric(config: ServersConfig) -> Fabric:
    link, racks = config.link, config.racks
    if racks is None:
        return Fabric(link.bandwidth, link.latency)
    return Fabric(link.bandwidth, link.latency, racks.servers * link.bandwidth / racks.oversubscription)

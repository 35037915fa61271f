"""Topology of a simulation: servers, each with its array, in racks behind a network. An array is a tree of one."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.config.array_file import ArrayConfig
from csd_emu.config.servers_file import MAX_SERVERS, RacksSection, ServerGroupSection, ServersConfig
from csd_emu.perfmodel.allreduce import AllReduce, Fabric
from csd_emu.perfmodel.host_node import exchange_seconds
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import End, RatioName
from csd_lab.simulate.nodes import MOST_DRIVES, NodeKind, Nodes, make_nodes
from csd_lab.simulate.rack_allreduce import ALGORITHMS
from firmware_agent.common.errors import ConfigurationError
from host.config.sync_section import SyncSection
from host.core.model_facts import Load
from host.core.tuning.batch_tuner import Batches
from host.core.tuning.speed_table import SpeedTable

Flags = npt.NDArray[np.bool_]

_ALONE = ServersConfig(name="alone", servers=[ServerGroupSection(name="alone", array="array.yaml")])
# Without racks: one, that holds all servers.
_ONE_RACK = RacksSection(servers=MAX_SERVERS)


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
        config: the servers, and what lies between them.
        blocks: servers with equal arrays.
        names: (nodes,) as ``server/drive``; of an array alone as the array has them.
        kinds: (nodes,) what each is.
        server_of: (nodes,) number of the server.
        is_drive: (nodes,) whether it is none of the hosts.
    """

    config: ServersConfig
    blocks: Sequence[EqualServers]
    names: Sequence[str]
    kinds: Sequence[NodeKind]
    server_of: Batches
    is_drive: Flags

    @property
    def count(self) -> int:
        """How many servers there are."""
        return sum(len(block.servers) for block in self.blocks)

    @property
    def trains(self) -> bool:
        """Whether any host takes part."""
        return any(block.nodes.trains for block in self.blocks)

    @property
    def ratio(self) -> float:
        """How many `newport` drives the first server's host is taken to be worth."""
        return self.blocks[0].nodes.ratio

    @property
    def load(self) -> Load:
        """What is trained."""
        return self.blocks[0].nodes.load

    @functools.cached_property
    def tables(self) -> list[SpeedTable]:
        """The speed table of each node."""
        return [kind.speed for kind in self.kinds]

    @functools.cached_property
    def largest_batches(self) -> Batches:
        """(nodes,) records that each holds at most."""
        return np.array([table.largest_batch for table in self.tables])

    @property
    def racks(self) -> RacksSection:
        """Where servers stand, and how they add up."""
        return self.config.racks or _ONE_RACK

    def index(self, name: str) -> int:
        """Return the number of a node: by ``server/drive``, or by the drive's name alone that of the first server.

        Raises:
            ConfigurationError: there is none.
        """
        for full in (name, f"{self.config.names[0]}/{name}"):
            if full in self.names:
                return self.names.index(full)
        raise ConfigurationError(
            f"disturb: {name!r} is none of the {len(self.names)} simulated nodes, {self.names[0]} to "
            f"{self.names[-1]}; name one of them, or simulate more drives"
        )

    def check_batches(self, batches: Batches) -> None:
        """Return if each node holds its batch.

        Raises:
            ConfigurationError: one does not; it is named.
        """
        largest = self.largest_batches
        for number in np.flatnonzero((batches < 0) | (batches > largest))[:1]:
            raise ConfigurationError(
                f"{self.names[number].replace('/', ': ')}: a batch of {batches[number]} is not between 0 and "
                f"{largest[number]}, what fits"
            )

    def reduce(self, present: Flags, algorithm: str | None = None) -> AllReduce:
        """Return what it costs the servers that are `present`, (servers,), to add up.

        Gradients and buffers; after several steps weights and buffers, and what the optimiser remembers.
        """
        racks, link, load = self.racks, self.config.link, self.load
        size_bytes = load.state_bytes + (load.optimiser_bytes if self.config.reduce_every > 1 else 0)
        fabric = Fabric(link.bandwidth, link.latency, racks.servers * link.bandwidth / racks.oversubscription)
        servers = np.bincount(np.flatnonzero(present) // racks.servers, minlength=1)
        return ALGORITHMS[algorithm or racks.allreduce](float(size_bytes), servers.tolist(), fabric)

    def sync_seconds(self, active: Batches | None = None) -> float:
        """Return what the exchange adds to a step: all of it but reading and computing.

        Args:
            active: (nodes,) 0 for one that takes no part; None: all do.
        """
        load, everyone, seconds = self.load, np.ones(self.count, bool), []
        takes_part = np.ones(len(self.names), bool) if active is None else active > 0
        for block in self.blocks:
            own = takes_part[block.places[0]]
            drives = [profile for profile, here in zip(block.nodes.profiles(), own, strict=False) if here]
            trains = bool(own[block.nodes.drives :].any())
            seconds.append(exchange_seconds(drives, block.nodes.link, load.state_bytes, load.gradient_bytes, trains))
        return max(seconds) + self.reduce(everyone).seconds / self.config.reduce_every


def make_tree(
    config: ServersConfig,
    arrays: Mapping[str, ArrayConfig],
    load: Load,
    store: CalibrationStore,
    sync: SyncSection,
    ratio: RatioName = "middle",
    end: End | None = None,
) -> Tree:
    """Return the tree of a servers file.

    Args:
        config: the servers.
        arrays: path as the servers file has it -> the array.
        load: what is trained.
        store: the calibration tables.
        sync: bounds of batches.
        ratio: which end of the hosts' band.
        end: of the bands of the profiles' figures at which all stand; None: the figures themselves.

    Raises:
        CalibrationError: a table is missing or damaged.
        ConfigurationError: the smallest batch does not fit into a device, or there are too many drives.
    """
    of_path = {path: make_nodes(array, load, store, sync, ratio, end=end) for path, array in arrays.items()}
    owned = [of_path[group.array] for group in config.servers for _ in group.names]
    total = sum(len(nodes.names) for nodes in owned)
    if total > MOST_DRIVES:
        raise ConfigurationError(f"servers: {total} drives and hosts are more than {MOST_DRIVES}; take fewer")
    names = [f"{server}/{node}" for server, nodes in zip(config.names, owned, strict=True) for node in nodes.names]
    return _tree(config, owned, names)


def array_tree(nodes: Nodes) -> Tree:
    """Return the tree of one server, whose nodes go by their own names."""
    return _tree(_ALONE, [nodes], nodes.names)


def _tree(config: ServersConfig, owned: Sequence[Nodes], names: Sequence[str]) -> Tree:
    """Return the tree of servers that have these nodes, one for each server."""
    sizes = np.array([len(nodes.names) for nodes in owned])
    begins = np.cumsum(sizes) - sizes
    blocks = []
    for nodes in {id(nodes): nodes for nodes in owned}.values():
        servers = np.flatnonzero([own is nodes for own in owned])
        blocks.append(EqualServers(nodes, servers, begins[servers][:, None] + np.arange(len(nodes.names))))
    return Tree(
        config=config,
        blocks=blocks,
        names=names,
        kinds=[nodes.kinds[number] for nodes in owned for number in nodes.kind_of],
        server_of=np.repeat(np.arange(len(owned)), sizes),
        is_drive=np.concatenate([np.arange(len(nodes.names)) < nodes.drives for nodes in owned]),
    )

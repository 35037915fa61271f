"""Nodes of one server in a simulation: drives without limit, and the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.host_node import link_of
from csd_emu.perfmodel.timeline import Link
from csd_emu.profiles import Profile, get_profile
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import End, RatioName
from csd_emu.util.node_names import HOST
from csd_lab.simulate.host_worth import host_worth
from firmware_agent.common.errors import ConfigurationError
from host.config.sync_section import SyncSection
from host.core.model_facts import Load
from host.core.tuning.speed_table import SpeedTable
from host.policies.batching.device_speeds import DeviceClass, device_classes

# More drives than this are a slip of the hand.
MOST_DRIVES = 1_000_000


@dataclass(frozen=True)
class NodeKind:
    """Nodes that are equal.

    Attributes:
        profile: of them.
        costs: their speed and memory.
        encode_seconds: of taking gradients out, once per step; the one part of a step that one core does alone.
    """

    profile: Profile
    costs: DeviceClass
    encode_seconds: float

    @property
    def speed(self) -> SpeedTable:
        """Seconds of a step against its batch."""
        return self.costs.speed


@dataclass(frozen=True)
class Nodes:
    """Drives, and behind them the host if it trains.

    Attributes:
        names: of the nodes, in participant order.
        kinds: what nodes there are; the last one is the host, whether it trains or not.
        kind_of: (nodes,) number in `kinds`.
        trains: whether the host takes part.
        link: the host's side.
        load: what is trained.
        ratio: how many `newport` drives the host is taken to be worth.
    """

    names: Sequence[str]
    kinds: Sequence[NodeKind]
    kind_of: npt.NDArray[np.int64]
    trains: bool
    link: Link
    load: Load
    ratio: float

    @property
    def drives(self) -> int:
        """How many drives there are."""
        return len(self.names) - self.trains

    @property
    def host(self) -> NodeKind:
        """The host."""
        return self.kinds[-1]

    @property
    def tables(self) -> list[SpeedTable]:
        """The speed table of each node, in participant order."""
        speeds = [kind.speed for kind in self.kinds]
        return [speeds[number] for number in self.kind_of]

    def profiles(self) -> list[Profile]:
        """Return the profile of each drive."""
        return [self.kinds[number].profile for number in self.kind_of[: self.drives]]


def make_nodes(
    config: ArrayConfig,
    load: Load,
    store: CalibrationStore,
    sync: SyncSection,
    ratio: RatioName = "middle",
    drives: int | None = None,
    end: End | None = None,
) -> Nodes:
    """Return the nodes of a simulation.

    Args:
        config: the array.
        load: what is trained.
        store: the calibration tables.
        sync: bounds of batches.
        ratio: which end of the host's band.
        drives: how many; the array's own are repeated in turn. None for the array's.
        end: of the bands of the profiles' figures at which all stand; None: the figures themselves.

    Raises:
        CalibrationError: a table is missing or damaged.
        ConfigurationError: the smallest batch does not fit into a device, or there are too many drives.
    """
    if drives is not None and not 1 <= drives <= MOST_DRIVES:
        raise ConfigurationError(f"--drives {drives}: must be between 1 and {MOST_DRIVES}")
    # The baseline needs the host's figures, whether it takes part or not.
    complete = config.model_copy(update={"host": config.host.model_copy(update={"trains": True})})
    tables = store.counting(complete.core_model).of(load.spec, load.shape)
    classes = device_classes(complete, tables, sync, ratio, end=end)
    pattern = config.list_devices()
    count = len(pattern) if drives is None else drives
    numbers: dict[str, int] = {}
    for device in pattern:
        numbers.setdefault(device.profile, len(numbers))
    host = get_profile(config.host.profile)
    by_profile = {device.profile: classes[device.name] for device in pattern}
    kinds = [_kind(get_profile(name), by_profile[name], ratio, end) for name in numbers]
    own = np.array([numbers[device.profile] for device in pattern])
    kind_of = np.concatenate([np.resize(own, count), np.full(int(config.host.trains), len(kinds))])
    return Nodes(
        names=[*_names(config, count), *([HOST] if config.host.trains else [])],
        kinds=[*kinds, _kind(host, classes[HOST], ratio, end)],
        kind_of=kind_of,
        trains=config.host.trains,
        link=link_of(config.link, host.at(end)),
        load=load,
        ratio=host_worth(tables, host.name, ratio),
    )


def _kind(profile: Profile, costs: DeviceClass, ratio: RatioName, end: End | None) -> NodeKind:
    table = costs.memory.table
    unit, worth = table.speed_of(profile, ratio)
    return NodeKind(profile.at(end), costs, table.encode_seconds_median * table.scale(unit.at(end), "encode") / worth)


def _names(config: ArrayConfig, count: int) -> list[str]:
    """Return the names of `count` drives: the array's own, and beyond them its groups' names, numbered on."""
    devices = config.list_devices()
    names = [device.name for device in devices[:count]]
    prefixes = [device.name.rpartition("-")[0] for device in devices]
    width = max(len(device.name.rpartition("-")[2]) for device in devices)
    used: Mapping[str, int] = {prefix: prefixes.count(prefix) for prefix in set(prefixes)}
    numbers = dict(used)
    for position in range(len(names), count):
        prefix = prefixes[position % len(prefixes)]
        names.append(f"{prefix}-{numbers[prefix]:0{width}d}")
        numbers[prefix] += 1
    return names

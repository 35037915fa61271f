"""All servers of a run as one of them sees them: its own array, and the array of all drives together."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from pydantic import Field, model_validator

from csd_emu.config.array_file import MAX_DEVICES, ArrayConfig, Device, DeviceGroup
from csd_emu.config.engine_names import AS_IN_FILE, ArrayChanges
from csd_emu.config.servers_file import ServersConfig, read_servers
from csd_emu.util.config_files import parse_config
from firmware_agent.common.atomic_files import read_file
from firmware_agent.common.errors import ConfigurationError
from host.config.array_files import read_array

# What groups are called that nobody has named.
_USUAL_NAME = "csd"
_MOST_BYTES = 64 << 20
_MOST_DEVICES = 36 * MAX_DEVICES


class ServerGroupConfig(ArrayConfig):
    """The drives of all servers as one array, which may have more than one server's can.

    Attributes:
        digits: group -> how many digits its drives' numbers have, as in the array of its server.
    """

    digits: dict[str, Annotated[int, Field(ge=1, le=9)]]

    def _digits(self, group: DeviceGroup, drives: int) -> int:
        if group.name not in self.digits:
            raise ValueError(f"digits: group {group.name!r} is missing; add it")
        return self.digits[group.name]

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if sum(len(group.drives or ()) or group.count for group in self.devices) > _MOST_DEVICES:
            raise ValueError(f"more than {_MOST_DEVICES} devices on all servers together")
        return self


@dataclass(frozen=True)
class ServerGroup:
    """What a server needs to know of all.

    Attributes:
        config: the servers file.
        server: this one.
        own: its array.
        whole: all servers' drives, in the order of the servers file; host and link are the first server's.
        arrays: array file, as the servers file names it -> what it says.
    """

    config: ServersConfig
    server: str
    own: ArrayConfig
    whole: ArrayConfig
    arrays: Mapping[str, ArrayConfig]

    @property
    def devices(self) -> list[Device]:
        """All servers' drives."""
        return self.whole.list_devices()

    def array_of(self, server: str) -> ArrayConfig:
        """Return the array of a server, drives named for it."""
        return _of_server(self.arrays[self.config.group_of(server).array], server, f"server {server}")

    @property
    def sha256(self) -> str:
        """Hash of what all servers must have alike; where they find each other is none of it."""
        # Where an inventory lies is each server's own.
        parts = {"": self.whole, **self.arrays}
        told = [self.config.model_dump(mode="json", exclude={"store", "network"})]
        told.append({file: part.model_dump(mode="json", exclude={"inventory"}) for file, part in parts.items()})
        return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()

    def dump(self) -> dict[str, Any]:
        """Return all of it, as JSON takes it (see `load_server_group`)."""
        parts = {"config": self.config, "own": self.own, "whole": self.whole}
        arrays = {file: array.model_dump(mode="json") for file, array in self.arrays.items()}
        dumped = {key: part.model_dump(mode="json") for key, part in parts.items()}
        return {"server": self.server, "arrays": arrays} | dumped


def load_server_group(path: Path) -> ServerGroup:
    """Return what `ServerGroup.dump` returned, from a file.

    Raises:
        ConfigurationError: it cannot be read, or is none.
    """
    try:
        content = msgspec.json.decode(read_file(path, _MOST_BYTES), type=dict[str, Any])
        server, config, own, whole = (content[key] for key in ("server", "config", "own", "whole"))
        arrays = dict(content["arrays"])
    except (OSError, msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: does not say which servers trained together ({error!r})") from error
    return ServerGroup(
        parse_config(config, ServersConfig, str(path)),
        str(server),
        parse_config(own, ArrayConfig, str(path)),
        parse_config(whole, ServerGroupConfig, str(path)),
        {file: parse_config(array, ArrayConfig, str(path)) for file, array in arrays.items()},
    )


def read_server_group(path: Path, server: str, changes: ArrayChanges = AS_IN_FILE) -> ServerGroup:
    """Read a servers file and all its array files, as the server of this name sees them.

    A drive is named for its server: ``csd-00`` of server ``a`` is ``a-00``, and ``fast-00`` of a group with a name of
    its own ``a-fast-00``. Real drives keep their names.

    Args:
        path: of the servers file.
        server: this one.
        changes: replace keys of the array files.

    Raises:
        ConfigurationError: a file breaks a rule, or the arrays do not fit together.
    """
    if server not in (config := read_servers(path)).names:
        raise ConfigurationError(f"{path}: has no server {server!r}; there are: {', '.join(config.names)}")
    read: dict[str, ArrayConfig] = {}
    arrays: dict[str, ArrayConfig] = {}
    for name in config.names:
        if (file := config.group_of(name).array) not in read:
            read[file] = _read_array(path.parent / file, changes)
        arrays[name] = _of_server(read[file], name, f"{path}: server {name}")
    return ServerGroup(config, server, arrays[server], _together(config.name, arrays, str(path)), read)


def _read_array(path: Path, changes: ArrayChanges) -> ArrayConfig:
    config = read_array(path, changes)
    if config.host.trains:
        raise ConfigurationError(
            f"{path}: host.trains: hosts of several servers do not train yet; take it out, or use one server"
        )
    return config


def _of_server(config: ArrayConfig, server: str, where: str) -> ArrayConfig:
    """Return a server's array, drives named for it."""
    content = config.model_dump(mode="json")
    content["name"] = f"{config.name[: 30 - len(server)]}-{server}"
    for group in content["devices"]:
        if group["drives"] is None:
            group["name"] = server if group["name"] == _USUAL_NAME else f"{server}-{group['name']}"
    return parse_config(content, ArrayConfig, where)


def _together(name: str, arrays: Mapping[str, ArrayConfig], where: str) -> ArrayConfig:
    """Return all arrays as one."""
    first = next(iter(arrays.values()))
    for server, array in arrays.items():
        if array.clock != first.clock:
            raise ConfigurationError(
                f"{where}: server {server} has clock: {array.clock}, the first one {first.clock}; seconds of different "
                "clocks cannot be compared: use one"
            )
    content = first.model_dump(mode="json") | {
        "name": name,
        "devices": [
            group.model_dump(mode="json") | {"engine": array.engine_of(group)}
            for array in arrays.values()
            for group in array.devices
        ],
        "digits": {
            group.name: max(2, len(str(len(array.list_devices()) - 1)))
            for array in arrays.values()
            for group in array.devices
        },
    }
    whole = parse_config(content, ServerGroupConfig, where)
    _check_names(whole, arrays, where)
    return whole


def _check_names(whole: ArrayConfig, arrays: Mapping[str, ArrayConfig], where: str) -> None:
    """Refuse servers whose drives' names run into each other's: equal prefixes would be numbered through."""
    own = [device.name for array in arrays.values() for device in array.list_devices()]
    if own != [device.name for device in whole.list_devices()]:
        raise ConfigurationError(
            f"{where}: {', '.join(name for name, count in Counter(own).items() if count > 1)}: drives of two servers "
            "have one name, which is made of the server's and the group's; give one of them another name"
        )

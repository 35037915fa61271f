"""Drives of an inventory that belong to an array: names of drives and groups become drives."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from csd_emu.config.array_file import REMOTE, ArrayConfig, DeviceGroup
from csd_emu.engines.remote.inventory import DriveEntry, Inventory, load_inventory
from firmware_agent.common.errors import ConfigurationError


def resolve_members(config: ArrayConfig, folder: Path, where: str) -> ArrayConfig:
    """Return the array with the names of real drives in place of groups, with their profiles and data.

    One that names no real drives comes back as it is; to resolve twice changes nothing.

    Args:
        config: as the file has it.
        folder: of the array file, from which the inventory's path counts.
        where: names the array file in errors.

    Raises:
        ConfigurationError: the inventory cannot be read, or a drive is unknown, or named twice.
    """
    if config.inventory is None:
        return config
    path = (folder / config.inventory).absolute()
    inventory = load_inventory(path)
    groups: list[DeviceGroup] = []
    seen: dict[str, int] = {}
    for number, group in enumerate(config.devices):
        if group.drives is None:
            groups.append(group)
            continue
        entries = [entry for name in group.drives for entry in _find(inventory, name, f"{where}: devices[{number}]")]
        for entry in entries:
            if entry.name in seen:
                raise ConfigurationError(
                    f"{where}: devices[{number}].drives: {entry.name} is named in devices[{seen[entry.name]}] already; "
                    "name every drive once"
                )
            seen[entry.name] = number
        groups += _alike(group, entries)
    changed = config.model_dump(mode="json") | {
        "inventory": str(path),
        "devices": [group.model_dump(mode="json") for group in groups],
    }
    return ArrayConfig.model_validate(changed)


def drives_of(config: ArrayConfig) -> dict[str, DriveEntry]:
    """Return device name -> how it is reached, of the real drives of a resolved array.

    Raises:
        ConfigurationError: the inventory cannot be read, or has such a drive no longer.
    """
    if config.inventory is None:
        return {}
    inventory = load_inventory(Path(config.inventory))
    entries = {entry.name: entry for entry in inventory.list_drives()}
    names = [device.name for device in config.list_devices() if device.engine == REMOTE]
    if gone := [name for name in names if name not in entries]:
        raise ConfigurationError(
            f"{config.inventory}: drive {gone[0]} of array {config.name!r} is not there any more; put it back"
        )
    return {name: entries[name] for name in names}


def _find(inventory: Inventory, name: str, where: str) -> list[DriveEntry]:
    entries = inventory.list_drives()
    found = [entry for entry in entries if entry.name == name] or [entry for entry in entries if name in entry.groups]
    if not found:
        known = [*inventory.drives, *inventory.groups]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        raise ConfigurationError(f"{where}.drives: inventory {inventory.name!r} has no drive or group {name!r}; {hint}")
    return found


def _alike(group: DeviceGroup, entries: list[DriveEntry]) -> Iterator[DeviceGroup]:
    """Yield groups of neighbours with one profile and one place of data."""

    def known(entry: DriveEntry) -> tuple[str, str | None]:
        return group.profile or entry.profile, group.data or entry.data

    for (profile, data), members in groupby(entries, known):
        names = [entry.name for entry in members]
        yield group.model_copy(update={"drives": names, "profile": profile, "data": data})

"""The inventory: which real drives there are, and how each is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from csd_emu.array import DeviceName, check_profile
from csd_emu.config import Config, load_config
from csd_emu.remote.layout import DEFAULT_FOLDER

GroupName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]


class Reach(Config):
    """How drives are reached; what is null comes from OpenSSH's own configuration, then from its defaults.

    Attributes:
        user: whom to log in as: root, or one with `sudo -n`.
        port: of the SSH server.
        key: private key file; null: those that OpenSSH would try, its agent's included.
        jump: ``[user@]host[:port]`` to go through, or several, separated by commas.
        known_hosts: file of host keys, for jump hosts too; null: OpenSSH's.
        ssh_config: OpenSSH's configuration file, as with `ssh -F`; null: the user's and the system's.
        folder: on the drive, for all that csd-emu has there.
        data: path on the drive of records that are used in place; null: the array copies a shard there.
        profile: which published or calibrated drive this is.
        host_address: under which the drive reaches the host of a run; null: the address that SSH came from.
    """

    user: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    key: str | None = None
    jump: str | None = None
    known_hosts: str | None = None
    ssh_config: str | None = None
    folder: str | None = None
    data: str | None = None
    profile: str | None = None
    host_address: str | None = None


class DriveSection(Reach):
    """One drive of the inventory, as the file has it.

    Attributes:
        host: name or address, or an alias of OpenSSH's configuration; null: the drive's name.
        groups: it belongs to.
    """

    host: str | None = None
    groups: list[GroupName] = Field(default_factory=list)


class Inventory(Config):
    """An inventory of real drives.

    Attributes:
        name: of the deployment: names its authority, and the folder that the server keeps for it.
        defaults: for every drive.
        groups: for the drives of a group; they go before `defaults`, a drive's own keys before both.
        drives: by name.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    defaults: Reach = Reach()
    groups: dict[GroupName, Reach] = Field(default_factory=dict)
    drives: dict[DeviceName, DriveSection] = Field(min_length=1)

    @model_validator(mode="after")
    def _groups_known(self) -> Self:
        for name, drive in self.drives.items():
            for group in drive.groups:
                if group not in self.groups:
                    raise ValueError(f"drives.{name}.groups: there is no group {group!r}; add it to groups")
        return self

    def list_drives(self) -> list[DriveEntry]:
        """Return the drives in the order of the file, with what groups and defaults give them."""
        return [self._entry(name, section) for name, section in self.drives.items()]

    def _entry(self, name: str, section: DriveSection) -> DriveEntry:
        layers = [section, *(self.groups[group] for group in section.groups), self.defaults]
        values: dict[str, str | int | None] = {
            key: next((value for layer in layers if (value := getattr(layer, key)) is not None), None)
            for key in Reach.model_fields
        }
        usual = {"folder": DEFAULT_FOLDER, "profile": "newport"}
        filled = {key: usual.get(key) if value is None else value for key, value in values.items()}
        return DriveEntry.model_validate(
            filled | {"name": name, "host": section.host or name, "groups": section.groups}
        )


class DriveEntry(Config):
    """One drive, all layers of the inventory laid over each other (see `Reach` and `DriveSection`)."""

    name: DeviceName
    host: str
    groups: list[str]
    folder: str
    profile: str
    user: str | None
    port: int | None
    key: str | None
    jump: str | None
    known_hosts: str | None
    ssh_config: str | None = None
    data: str | None
    host_address: str | None

    @field_validator("profile")
    @classmethod
    def _known(cls, value: str) -> str:
        return check_profile(value, "drive")


def load_inventory(path: Path) -> Inventory:
    """Read an inventory file.

    Raises:
        ConfigurationError: the file breaks a rule; every broken rule is named with its key.
    """
    return load_config(path, Inventory)

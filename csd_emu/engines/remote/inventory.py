"""The inventory: which real drives there are, how each is reached, and which of them belong to an array."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from csd_emu.config.array_file import REMOTE, ArrayConfig, DeviceGroup, DeviceName, DriveProfile
from csd_emu.engines.remote.drive_layout import DEFAULT_FOLDER
from csd_emu.util.config_files import Config, load_config
from csd_emu.util.nearest_word import hint_at
from firmware_agent.common.errors import ConfigurationError

DEFAULT_PROFILE = "newport"
# One hop of `jump`, as OpenSSH's ProxyJump has it.
HOP = re.compile(
    r"^(?:(?P<user>[A-Za-z0-9._+=%][A-Za-z0-9._+=%-]*)@)?"
    r"(?:\[(?P<six>[0-9A-Za-z:.%]+)\]|(?P<host>[A-Za-z0-9._%+][A-Za-z0-9._%+-]*))(?::(?P<port>\d{1,5}))?\Z"
)
NO_CONFIG = "none"
_SECRET = re.compile(r"pass(word|phrase|wd)?$|secret$", re.IGNORECASE)
# Folders of the system itself: none of them is ever ours alone.
_SYSTEM_FOLDERS = frozenset(
    f"/{name}"
    for name in (
        *("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "media", "mnt", "opt", "proc", "root", "run"),
        *("sbin", "srv", "sys", "tmp", "usr", "var"),
        *("usr/bin", "usr/lib", "usr/libexec", "usr/local", "usr/sbin", "usr/share"),
        *("usr/local/bin", "usr/local/lib", "var/cache", "var/lib", "var/log", "var/run", "var/spool", "var/tmp"),
    )
)
_NEVER_BELOW = ("/dev/", "/proc/", "/sys/")
_LOCAL_PATHS = ("key", "known_hosts", "ssh_config")


def _word(pattern: str, rule: str) -> Any:
    """Return the metadata of a text that `pattern` must match, with an error that says `rule`."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(rule)
        return value

    return AfterValidator(check), WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


def _forbid_secrets(value: object) -> object:
    """Return the value, {} for null, if no key in it is a password's; raises `ValueError` otherwise."""
    for key in value if isinstance(value, dict) else ():
        if isinstance(key, str) and _SECRET.search(key):
            raise ValueError(
                f"{key}: no password belongs into a file; log in with a key (ssh-copy-id puts it on the drive; "
                "ssh-agent keeps its passphrase), and allow sudo without one"
            )
    return {} if value is None else value


GroupName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
# Names and users become parts of OpenSSH's commands, a ProxyCommand of the user's among them, which a shell reads.
_PLAIN = _word(
    r"[A-Za-z0-9._:%@+=,/][A-Za-z0-9._:%@+=,/-]*",
    "must be one word of letters, digits and . _ : % @ + = , / -, and not begin with '-'",
)
_Word = Annotated[str, *_PLAIN]
# Blanks and quotes would need care in every script of a drive; nobody needs them.
_PATH = _word(
    r"(/(?!\.\.?(/|$))[A-Za-z0-9._@+-]+)+",
    "must be an absolute path of letters, digits and . _ @ + -, without '..' and a slash at its end",
)
_RemotePath = Annotated[str, *_PATH]


class Reach(Config):
    """How drives are reached; what is null comes from OpenSSH's own configuration, then from its defaults.

    Attributes:
        user: whom to log in as: root, or one with `sudo -n`.
        port: of the SSH server.
        key: private key file, from the inventory's folder; null: those that OpenSSH would try, its agent's included.
        jump: ``[user@]host[:port]`` to go through, or several, separated by commas; ``none`` for no jump.
        known_hosts: file of host keys, for jump hosts too; null: OpenSSH's.
        ssh_config: OpenSSH's configuration file, as with `ssh -F`, ``none`` for no such file; null: the user's and the
            system's.
        folder: on the drive, for all that csd-emu has there.
        data: path on the drive of records that are used in place; null: the array copies a shard there.
        profile: which published or calibrated drive this is.
        host_address: under which the drive reaches the host of a run; null: the address that SSH came from.
    """

    user: _Word | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    key: str | None = None
    jump: str | None = None
    known_hosts: str | None = None
    ssh_config: str | None = None
    folder: _RemotePath | None = None
    data: _RemotePath | None = None
    profile: DriveProfile | None = None
    host_address: _Word | None = None

    @field_validator("jump")
    @classmethod
    def _hops(cls, value: str | None) -> str | None:
        for hop in [] if value in (None, NO_CONFIG) else str(value).split(","):
            if HOP.match(hop.strip(" ")) is None:
                raise ValueError(f"{hop!r} is no jump host; write [user@]host[:port]")
        return value

    @field_validator("folder")
    @classmethod
    def _our_own(cls, value: str | None) -> str | None:
        if value in _SYSTEM_FOLDERS or (value or "").startswith(_NEVER_BELOW):
            raise ValueError(f"{value} belongs to the drive's system; give a folder of its own, as {DEFAULT_FOLDER}")
        return value


class DriveSection(Reach):
    """One drive of the inventory, as the file has it.

    Attributes:
        host: name or address, or an alias of OpenSSH's configuration; null: the drive's name.
        groups: it belongs to; the keys of one go before those of the next.
    """

    host: _Word | None = None
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
    defaults: Annotated[Reach, BeforeValidator(_forbid_secrets)] = Reach()
    groups: dict[GroupName, Annotated[Reach, BeforeValidator(_forbid_secrets)]] = Field(default_factory=dict)
    drives: dict[DeviceName, Annotated[DriveSection, BeforeValidator(_forbid_secrets)]]

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, value: Any) -> Any:
        return _forbid_secrets(value)

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        none = [] if self.drives else ["drives: there is none; add one, for example csd-00: {host: 10.0.0.2}"]
        if problems := [*self._unknown_groups(), *self._same_places(), *self._tangled_paths(), *none]:
            raise ValueError("; ".join(problems))
        return self

    def list_drives(self) -> list[DriveEntry]:
        """Return the drives in the order of the file, with what groups and defaults give them."""
        return [self._entry(name, section) for name, section in self.drives.items()]

    def resolved(self, folder: Path) -> Inventory:
        """Return the inventory with paths of this machine made absolute: from `folder`, `~` is the user's home."""

        def resolve(section: Reach) -> dict[str, str]:
            given = {key: getattr(section, key) for key in _LOCAL_PATHS if getattr(section, key) is not None}
            return {
                key: value if (key, value) == ("ssh_config", NO_CONFIG) else str(folder / Path(value).expanduser())
                for key, value in given.items()
            }

        return self.model_copy(
            update={
                "defaults": self.defaults.model_copy(update=resolve(self.defaults)),
                "groups": {name: one.model_copy(update=resolve(one)) for name, one in self.groups.items()},
                "drives": {name: one.model_copy(update=resolve(one)) for name, one in self.drives.items()},
            }
        )

    def _unknown_groups(self) -> Iterator[str]:
        for name, drive in self.drives.items():
            for group in drive.groups:
                if group not in self.groups:
                    hint = hint_at(group, self.groups, "add it to groups")
                    yield f"drives.{name}.groups: there is no group {group!r}; {hint}"

    def _same_places(self) -> Iterator[str]:
        """Name drives that are one machine: it has one agent, one unit and one user, whatever the folder."""
        seen: dict[tuple[object, ...], str] = {}
        for drive in self.list_drives():
            place = (drive.host.lower(), drive.port or 22, drive.jump, drive.ssh_config)
            if (other := seen.setdefault(place, drive.name)) != drive.name:
                yield (
                    f"drives.{drive.name}: is the same place as {other} ({drive.host}, port {drive.port or 22}); one "
                    "machine is one drive: remove one of them, or correct host or port"
                )

    def _tangled_paths(self) -> Iterator[str]:
        for drive in (each for each in self.list_drives() if each.data is not None):
            folder, data = f"{drive.folder}/", f"{drive.data}/"
            if folder.startswith(data) or data.startswith(folder):
                yield (
                    f"drives.{drive.name}: one of data ({drive.data}) and folder ({drive.folder}) lies in the other, "
                    "and folder is removed as a whole; give a folder apart from the records"
                )

    def _entry(self, name: str, section: DriveSection) -> DriveEntry:
        layers = [section, *[self.groups[group] for group in section.groups if group in self.groups], self.defaults]
        values: dict[str, str | int | None] = {
            key: next((value for layer in layers if (value := getattr(layer, key)) is not None), None)
            for key in Reach.model_fields
        }
        usual = {"folder": DEFAULT_FOLDER, "profile": DEFAULT_PROFILE}
        filled = {key: usual.get(key) if value is None else value for key, value in values.items()}
        return DriveEntry.model_validate(
            filled | {"name": name, "host": section.host or name, "groups": section.groups}
        )


class DriveEntry(DriveSection):
    """One drive, all layers of the inventory laid over each other; what is null here nobody has said."""

    name: DeviceName
    host: str
    folder: str
    profile: str


def load_inventory(path: Path) -> Inventory:
    """Read an inventory file; relative paths of keys and files of host keys are from its folder.

    Raises:
        ConfigurationError: the file breaks a rule; every broken rule is named with its key.
    """
    return load_config(path, Inventory).resolved(path.absolute().parent)


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
    entries = {entry.name: entry for entry in load_inventory(Path(config.inventory)).list_drives()}
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
        hint = hint_at(name, known, f"there are: {', '.join(known)}")
        raise ConfigurationError(f"{where}.drives: inventory {inventory.name!r} has no drive or group {name!r}; {hint}")
    return found


def _alike(group: DeviceGroup, entries: list[DriveEntry]) -> Iterator[DeviceGroup]:
    """Yield groups of neighbours with one profile and one place of data."""
    same = groupby(entries, lambda entry: (group.profile or entry.profile, group.data or entry.data))
    for (profile, data), members in same:
        yield group.model_copy(update={"drives": [entry.name for entry in members], "profile": profile, "data": data})

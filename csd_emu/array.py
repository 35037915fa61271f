"""The array file: which drives there are, and on what they run."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from csd_emu.config import Bytes, BytesPerSecond, Config, Seconds, Watts
from csd_emu.profiles import PROFILES, get_profile
from csd_emu.timeline import HOST
from firmware_agent.errors import ConfigurationError

MAX_DEVICES = 1024
MIN_MEMORY_BYTES, MAX_MEMORY_BYTES = 2**30, 2**34
_MEBIBYTE = 2**20
# With the prefixes of firmware_agent.handover a name must fit an NVMe serial number of 20 characters.
DeviceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,12}[a-z0-9]$")]


def check_profile(name: str, kind: str) -> str:
    """Return the name of a profile of that kind; raises `ValueError`, as pydantic's validators do, if it is none."""
    try:
        profile = get_profile(name)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    if profile.kind != kind:
        fit = ", ".join(name for name, known in PROFILES.items() if known.kind == kind)
        raise ValueError(f"profile {name!r} is a {profile.kind}, not a {kind}; choose one of: {fit}")
    return name


def _check_dram(value: float) -> float:
    if not MIN_MEMORY_BYTES <= value <= MAX_MEMORY_BYTES or value % _MEBIBYTE:
        raise ValueError("must be whole MiB between 1 GiB (torch does not fit below) and 16 GiB")
    return value


Dram = Annotated[Bytes, AfterValidator(_check_dram)]


class DeviceGroup(Config):
    """`count` equal drives; `name` is the prefix of their names, ``csd`` gives csd-00, csd-01..."""

    profile: str
    count: int = Field(default=1, ge=1, le=MAX_DEVICES)
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,8}$")] = "csd"

    @field_validator("profile")
    @classmethod
    def _known(cls, value: str) -> str:
        return check_profile(value, "drive")


class HostSection(Config):
    """What the host is, and where it listens. A port of null means any free one, chosen once at `up`.

    Attributes:
        profile: its figures for time and energy.
        address: its own address on which it listens, for drives, Prometheus and browsers; all of its own: ``0.0.0.0``.
        port: on which drives dial in.
        metrics_port: on which Prometheus scrapes.
        trains: whether it takes part in synchronous training, as the node ``host``.
        power_cap: what the whole array may draw on average over device time; an alert says when it draws more.
    """

    profile: str = "xeon-4108"
    trains: bool = False
    address: IPv4Address = Field(default=IPv4Address("127.0.0.1"), strict=False)
    port: int | None = Field(default=None, ge=1024, le=65535)
    metrics_port: int | None = Field(default=None, ge=1024, le=65535)
    power_cap: Watts | None = None

    @field_validator("profile")
    @classmethod
    def _known(cls, value: str) -> str:
        return check_profile(value, "host")

    @field_validator("power_cap")
    @classmethod
    def _positive(cls, value: float | None) -> float | None:
        if value is not None and value <= 0:
            raise ValueError("must be more than 0 W; leave it out for no cap")
        return value


class LinkSection(Config):
    """The link between host and drives; what is null comes from the host's profile.

    Attributes:
        bandwidth: of the host's side, in each direction.
        latency: of a transfer.
        shared: whether all drives share the bandwidth, or each has as much.
    """

    bandwidth: BytesPerSecond | None = None
    latency: Seconds | None = None
    shared: bool = True

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.bandwidth is not None and self.bandwidth <= 0:
            raise ValueError("link.bandwidth must be more than 0 B/s")
        return self


class Device(Config):
    """One drive of an array, or its host as a node that trains."""

    name: DeviceName
    number: int
    profile: str


class ArrayConfig(Config):
    """An array of drives.

    Attributes:
        name: names VMs, processes and folders; one array of a name runs at a time.
        engine: ``qemu`` for ARM virtual machines, ``native`` for processes on this machine.
        hypervisors: libvirt URIs over which the drives are dealt out in turn (qemu).
        memory: DRAM of each VM (qemu).
        clock: of native drives: ``modelled`` from a calibration table, ``wall``, or ``auto``: modelled if there is a
            table for the job's model, else wall. Virtual machines always count.
        host: what the host is and where it listens.
        link: between host and drives.
        devices: groups of equal drives.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    engine: Literal["qemu", "native"] = "qemu"
    hypervisors: list[str] = Field(default=["qemu:///session"], min_length=1)
    memory: Dram = Field(default="2 GiB")  # type: ignore[assignment]
    clock: Literal["auto", "modelled", "wall"] = "auto"
    host: HostSection = HostSection()
    link: LinkSection = LinkSection()
    devices: list[DeviceGroup] = Field(min_length=1)

    @model_validator(mode="after")
    def _clock_fits(self) -> Self:
        if self.engine == "qemu" and self.clock != "auto":
            raise ValueError(f"clock: {self.clock} is for native drives; a qemu drive's clock is counted: leave it out")
        return self

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if sum(group.count for group in self.devices) > MAX_DEVICES:
            raise ValueError(f"more than {MAX_DEVICES} devices in one array; use several arrays")
        return self

    def list_devices(self) -> list[Device]:
        """Return the drives in the order of the file; numbers count through groups of one name."""
        profiles = [(group.name, group.profile) for group in self.devices for _ in range(group.count)]
        width = max(2, len(str(len(profiles) - 1)))
        seen: dict[str, int] = {}
        devices = []
        for number, (prefix, profile) in enumerate(profiles):
            seen[prefix] = seen.get(prefix, -1) + 1
            devices.append(Device(name=f"{prefix}-{seen[prefix]:0{width}d}", number=number, profile=profile))
        return devices

    def list_nodes(self) -> list[Device]:
        """Return who trains: the drives, and the host behind them if it does."""
        drives = self.list_devices()
        host = Device(name=HOST, number=len(drives), profile=self.host.profile)
        return [*drives, host] if self.host.trains else drives


__all__ = ["PROFILES", "ArrayConfig", "Device", "DeviceGroup", "HostSection", "LinkSection"]

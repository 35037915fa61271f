"""The array file: which drives there are, and on what they run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from ipaddress import IPv4Address
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from csd_emu.config.engine_names import Clock, EngineName
from csd_emu.config.hypervisors import SESSION_URI, HypervisorEntry, HypervisorSection, Spread, name_hypervisors
from csd_emu.profiles import PROFILES, get_profile
from csd_emu.profiles.calibration import CoreModel
from csd_emu.util.config_files import Bytes, BytesPerSecond, Config, Seconds, Watts
from csd_emu.util.node_names import HOST, MAX_COUNTERS
from firmware_agent.common.errors import ConfigurationError

MAX_DEVICES = 1024
QEMU: Final = "qemu"
NATIVE: Final = "native"
REMOTE: Final = "remote"
SAMPLED: Final = "sampled"
# Of a real drive before the inventory has been looked into.
UNKNOWN_PROFILE = "newport"
MIN_MEMORY_BYTES, MAX_MEMORY_BYTES = 2**30, 2**34
_MEBIBYTE = 2**20
_VERSION = r"\s*(~=|===?|!=|<=?|>=?)\s*[\w.*+!-]+\s*"
# A name, extras, versions, as pip reads them; neither an address nor an option of pip's.
_PACKAGE = re.compile(rf"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?\s*(\[[\w.,\s-]*\])?({_VERSION}(,{_VERSION})*)?", re.ASCII)
# With the prefixes of firmware_agent.common.handover a name must fit an NVMe serial number of 20 characters.
DeviceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,12}[a-z0-9]$")]

WebName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?$")]


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


DriveProfile = Annotated[str, AfterValidator(partial(check_profile, kind="drive"))]
HostProfile = Annotated[str, AfterValidator(partial(check_profile, kind="host"))]


def _check_dram(value: float) -> float:
    if not MIN_MEMORY_BYTES <= value <= MAX_MEMORY_BYTES or value % _MEBIBYTE:
        raise ValueError("must be whole MiB between 1 GiB (torch does not fit below) and 16 GiB")
    return value


Dram = Annotated[Bytes, AfterValidator(_check_dram)]


class DeviceGroup(Config):
    """Some drives of an array: `count` equal ones, or real ones by name.

    Attributes:
        profile: which drive it is; of real drives null is the inventory's.
        count: how many.
        name: the prefix of their names, ``csd`` gives csd-00, csd-01...
        engine: what they run on; null: the array's.
        drives: real drives, by the names of drives or groups of the inventory; they keep the drives' names.
        data: path in the drives of records that they train on in place, of virtual machines path here of what lies on
            their flash; null is the inventory's, or none.
    """

    profile: DriveProfile | None = None
    count: int = Field(default=1, ge=1, le=MAX_DEVICES)
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,8}$")] = "csd"
    engine: EngineName | None = None
    drives: Annotated[list[str], Field(min_length=1)] | None = None
    data: str | None = None

    def rules(self) -> Mapping[str, object]:
        """Return the rules of groups."""
        real = self.drives is not None
        return {
            "profile is missing; add it, or name real drives with drives: [...]": not real and self.profile is None,
            "count and name are for drives that are made; real ones are named with drives: leave them out": (
                real and (self.count, self.name) != (1, "csd")
            ),
            f"drives: are real ones of the inventory, and the group's engine is {self.engine}": (
                real and self.engine not in (None, REMOTE)
            ),
            f"data: {self.data!r} must be an absolute path": (self.data is not None and not self.data.startswith("/")),
        }


class HostSection(Config):
    """What the host is, and where it listens. A port of null means any free one, chosen once at `up`.

    Attributes:
        profile: its figures for time and energy.
        address: its own address on which it listens, for drives, Prometheus and browsers; all of its own: ``0.0.0.0``.
        port: on which drives dial in.
        metrics_port: on which Prometheus scrapes, and the page is; else 9464, or any free one if that is taken.
        names: host names, with a port or without, by which browsers and Prometheus may ask for the page and the
            metrics; they always may by an IP address or as ``localhost``.
        trains: whether it takes part in synchronous training, as the node ``host``.
        power_cap: what the whole array may draw on average over device time; an alert says when it draws more.
    """

    profile: HostProfile = "xeon-4108"
    trains: bool = False
    address: IPv4Address = Field(default=IPv4Address("127.0.0.1"), strict=False)
    port: int | None = Field(default=None, ge=1024, le=65535)
    metrics_port: int | None = Field(default=None, ge=1024, le=65535)
    names: list[WebName] = Field(default=[], max_length=64)
    power_cap: Watts | None = None

    @field_validator("power_cap")
    @classmethod
    def _positive(cls, value: float | None) -> float | None:
        if value is not None and value <= 0:
            raise ValueError("must be more than 0 W; leave it out for no cap")
        return value


def _check_package(text: str) -> str:
    if not _PACKAGE.fullmatch(text):
        raise ValueError(f"{text!r} is no package with or without versions, such as einops==0.8.1 or einops>=0.8,<1")
    return text


class ImageSection(Config):
    """What the image of the array's virtual machines has beside torch, NumPy and what the agent needs.

    Attributes:
        packages: Python packages, in pip's form; native drives need them in the Python that runs csd-emu.
    """

    packages: list[Annotated[str, AfterValidator(_check_package)]] = Field(default=[], max_length=64)


class LinkSection(Config):
    """The link between host and drives; what is null comes from the host's profile.

    Attributes:
        bandwidth: of the host's side, in each direction.
        latency: of a transfer.
        shared: whether all drives share the bandwidth, or each has as much.
        shaped: native drives on the wall clock really get this link: in a network ``namespace`` of the kernel's,
            through a ``relay``, or whichever this machine allows. Null: bytes pass as fast as they can.
    """

    bandwidth: BytesPerSecond | None = None
    latency: Seconds | None = None
    shared: bool = True
    shaped: Literal["auto", "namespace", "relay"] | None = None

    def rules(self) -> Mapping[str, object]:
        """Return the rule of its bandwidth."""
        return {"link.bandwidth must be more than 0 B/s": self.bandwidth is not None and self.bandwidth <= 0}


class Device(Config):
    """One drive of an array, or its host as a node that trains.

    Attributes:
        name: its own, in the array.
        number: its place.
        profile: what it is.
        engine: what it runs on.
        data: path of records that it trains on in place, as the group has it; None: the array gives it a shard.
    """

    name: DeviceName
    number: int
    profile: str
    engine: EngineName = "qemu"
    data: str | None = None


class ArrayConfig(Config):
    """An array of drives.

    Attributes:
        name: names VMs, processes and folders; one array of a name runs at a time.
        engine: ``qemu`` for ARM virtual machines, ``native`` for processes on this machine, ``remote`` for real drives;
            a group of devices may have another one.
        inventory: file of the real drives, from the array file's folder.
        hypervisors: libvirt URIs on which the drives are placed, or mappings with more than a URI (qemu).
        spread: ``fill`` gives each hypervisor a drive per core before the next one gets any, ``even`` deals them out so
            that all have as many per core (qemu).
        memory: DRAM of each VM (qemu, sampled).
        clock: of native drives: ``modelled`` from a calibration table, ``wall``, or ``auto``: modelled if there is a
            table for the job's model, else wall. Virtual machines always count, real drives always have the wall's.
            ``sampled``: all drives but real ones are native, and some of their steps are counted on virtual machines.
        calibrate: ``auto``: before a run whose model has no calibration table, for native drives, one is measured on a
            virtual machine and kept.
        samplers: how many virtual machines count steps (sampled); each has `memory`.
        core_model: what a reference core's nanosecond stands for: ``instructions``, one each, or ``cycles`` of a
            Cortex-A53 as its model counted them in calibration.
        image: what virtual machines have beside what all have.
        host: what the host is and where it listens.
        link: between host and drives.
        devices: groups of drives.
    """

    synonyms: ClassVar = dict.fromkeys(
        ("drives", "num_drives", "count", "profile"), "devices: [{profile: ..., count: ...}]"
    )

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    engine: EngineName = "qemu"
    inventory: str | None = None
    hypervisors: list[HypervisorEntry] = Field(default=[SESSION_URI], min_length=1)
    spread: Spread = "fill"
    memory: Dram = Field(default="2 GiB")  # type: ignore[assignment]
    clock: Clock = "auto"
    calibrate: Literal["never", "auto"] = "never"
    samplers: int = Field(default=1, ge=1, le=MAX_COUNTERS)
    core_model: CoreModel = "instructions"
    image: ImageSection = ImageSection()
    host: HostSection = HostSection()
    link: LinkSection = LinkSection()
    devices: list[DeviceGroup] = Field(min_length=1)

    def rules(self) -> Mapping[str, object]:
        """Return the rules of clock, link, groups and inventory, in this order."""
        whose = "drives that are no real ones" if self.clock == SAMPLED else "native drives"
        shaped = self.link.shaped is not None
        return {
            f"clock: {self.clock} is for {whose}; a qemu drive's clock is counted or sampled, a real one's is the "
            "wall's: leave it out": self.clock != "auto" and NATIVE not in self.engines,
            f"samplers: {self.samplers}: virtual machines count steps with clock: {SAMPLED} alone, and this "
            f"array's is {self.clock}: leave samplers out, or add clock: {SAMPLED}": (
                self.samplers > 1 and self.clock != SAMPLED
            ),
            "link.shaped: is for arrays of native drives alone on the wall clock; add engine: native and clock: "
            "wall, take host.trains out, or leave shaped: out": (
                shaped and (self.engines != (NATIVE,) or self.clock != "wall" or self.host.trains)
            ),
            "link.shaped: all drives share a shaped link; leave link.shared out": shaped and not self.link.shared,
            **{
                message: broken
                for number, group in enumerate(self.devices)
                for message, broken in self._group_rules(f"devices[{number}]", group).items()
            },
            "engine: remote needs inventory: the file that says which drives there are": (
                REMOTE in self.engines and self.inventory is None
            ),
            "image.packages: real drives have the packages that csd-emu deploy put there; leave it out, and install "
            "what your code imports in the drives": REMOTE in self.engines and bool(self.image.packages),
            "inventory: is for engine: remote, and no device has it; leave it out": (
                REMOTE not in self.engines and self.inventory is not None
            ),
        }

    def _group_rules(self, where: str, group: DeviceGroup) -> dict[str, object]:
        engine, lies_there = self.engine_of(group), group.data is not None
        return {
            f"{where}: engine: remote needs drives: [names of drives of the inventory]": (
                engine == REMOTE and group.drives is None
            ),
            f"{where}: drives: are real ones; add engine: remote, or leave them out": (
                engine != REMOTE and group.drives is not None
            ),
            f"{where}: data: {group.data} lies in the drive, and with clock: {SAMPLED} a virtual machine counts steps, "
            "which has the job's records alone: leave data out, or take another clock": (
                engine == NATIVE and lies_there and self.clock == SAMPLED
            ),
        }

    @model_validator(mode="after")
    def _hypervisors_differ(self) -> Self:
        name_hypervisors(self.hypervisors)
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [name for name, _ in self._named()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"devices: {', '.join(twice)} is there twice; name every drive once")
        return self

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if sum(len(group.drives or ()) or group.count for group in self.devices) > MAX_DEVICES:
            raise ValueError(f"more than {MAX_DEVICES} devices in one array; use several arrays")
        return self

    @property
    def named_hypervisors(self) -> dict[str, HypervisorSection]:
        """Name -> hypervisor, in the order of the file."""
        return name_hypervisors(self.hypervisors)

    def list_devices(self) -> list[Device]:
        """Return the drives in the order of the file; numbers count through groups of one name."""
        # Real drives have a profile once the inventory has been looked into (see `csd_emu.engines.remote.inventory`).
        return [
            Device(
                name=name,
                number=number,
                profile=group.profile or UNKNOWN_PROFILE,
                engine=self.engine_of(group),
                data=group.data,
            )
            for number, (name, group) in enumerate(self._named())
        ]

    def _named(self) -> Iterator[tuple[str, DeviceGroup]]:
        each = [(group, place) for group in self.devices for place in range(len(group.drives or ()) or group.count)]
        seen: dict[str, int] = {}
        for group, place in each:
            if group.drives is not None:
                name = group.drives[place]
            else:
                seen[group.name] = seen.get(group.name, -1) + 1
                name = f"{group.name}-{seen[group.name]:0{self._digits(group, len(each))}d}"
            yield name, group

    def _digits(self, group: DeviceGroup, drives: int) -> int:
        """Return how many digits the numbers of a group have, in an array of so many drives."""
        return max(2, len(str(drives - 1)))

    def engine_of(self, group: DeviceGroup) -> EngineName:
        """Return what the drives of a group run on: processes in place of virtual machines if steps are sampled."""
        engine = group.engine or self.engine
        return NATIVE if engine == QEMU and self.clock == SAMPLED else engine

    @property
    def counted_engine(self) -> EngineName:
        """What the drives run on whose seconds are instructions that a virtual machine counted, all or some of them."""
        return NATIVE if self.clock == SAMPLED else QEMU

    @property
    def sampled(self) -> frozenset[str]:
        """Names of the drives of which virtual machines count some steps."""
        native = (device.name for device in self.list_devices() if device.engine == NATIVE)
        return frozenset(native if self.clock == SAMPLED else ())

    @property
    def engines(self) -> tuple[EngineName, ...]:
        """What the drives run on, each once, in the order of the file."""
        return tuple(dict.fromkeys(self.engine_of(group) for group in self.devices))

    @property
    def engine_label(self) -> str:
        """What the drives run on, for people and labels: several are joined by ``+``."""
        return "+".join(self.engines)

    def list_nodes(self) -> list[Device]:
        """Return who trains: the drives, and the host behind them if it does."""
        drives = self.list_devices()
        host = Device(name=HOST, number=len(drives), profile=self.host.profile, engine=NATIVE)
        return [*drives, host] if self.host.trains else drives


__all__ = ["PROFILES", "ArrayConfig", "Device", "DeviceGroup", "HostSection", "LinkSection"]

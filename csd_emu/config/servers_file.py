"""The servers file: which servers train together, each with its own array of drives; racks for simulations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from csd_emu.util.config_files import BytesPerSecond, Config, Seconds, load_config


class RacksSection(Config):
    """Where servers stand.

    Attributes:
        servers: of each rack, in the order of the file.
        oversubscription: bandwidth of a full rack's links over that of its uplink; 1 never blocks.
        allreduce: how servers add up: a ``ring`` whose ranks follow the racks, one whose neighbours are ``scattered``
            over them, or ``hierarchical``, inside racks first (see `csd_lab.simulate.rack_allreduce`).
    """

    servers: int = Field(ge=1)
    oversubscription: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    allreduce: Literal["ring", "scattered", "hierarchical"] = "ring"


class FailuresSection(Config):
    """What fails, in the array's time. What has no mean time between failures never does.

    Attributes:
        server_mtbf: mean time between failures of one server.
        server_repair: until it is back; null: never.
        drive_mtbf: mean time between failures of one drive.
        drive_repair: until it is back; null: never.
        rendezvous: until servers train on after one was lost or came back.
    """

    server_mtbf: Seconds | None = None
    server_repair: Seconds | None = None
    drive_mtbf: Seconds | None = None
    drive_repair: Seconds | None = None
    rendezvous: Seconds = Field(default="20 s")  # type: ignore[assignment]

    def rules(self) -> Mapping[str, object]:
        """Return the rules of mean times between failures."""
        return {
            f"failures.{name} must be more than 0 s; leave it out for none": seconds == 0
            for name, seconds in {"server_mtbf": self.server_mtbf, "drive_mtbf": self.drive_mtbf}.items()
        }


MAX_SERVERS = 10_000
# The rest of a drive's name of 14 characters is for its group and number.
ServerName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,8}$")]
STORE_PORT = 29400


class ServerGroupSection(Config):
    """One server, or `count` equal ones.

    Attributes:
        name: of the server; of several the prefix of their names: ``rack`` gives rack-0, rack-1...
        array: path of its array file, from the servers file's folder.
        count: how many.
        address: its own address in the servers' network; null where each server finds its own there.
    """

    name: ServerName
    array: Annotated[str, Field(min_length=1)]
    count: int = Field(default=1, ge=1, le=MAX_SERVERS)
    address: IPv4Address | None = Field(default=None, strict=False)

    def rules(self) -> Mapping[str, object]:
        """Return the rule of addresses."""
        told = "address is of one server, and count makes several; list them one by one, or leave it out"
        return {told: self.address is not None and self.count > 1}

    @property
    def names(self) -> list[str]:
        """The servers' names."""
        width = len(str(self.count - 1))
        return [self.name] if self.count == 1 else [f"{self.name}-{number:0{width}d}" for number in range(self.count)]


class ServerLink(Config):
    """Each server's link to the others, in each direction, over which sums of gradients cross.

    Attributes:
        bandwidth: 10 Gbit/s if not said.
        latency: of a transfer.
    """

    bandwidth: BytesPerSecond = Field(default="1.25 GB/s")  # type: ignore[assignment]
    latency: Seconds = Field(default="50 us")  # type: ignore[assignment]

    def rules(self) -> Mapping[str, object]:
        """Return the rule of its bandwidth."""
        return {"link.bandwidth must be more than 0 B/s": self.bandwidth <= 0}


class StoreSection(Config):
    """Where servers find each other: the store that `csd-emu store` keeps, which outlives every one of them.

    Attributes:
        address: of the machine that keeps it, in the servers' network.
        port: on which it listens.
        key: file with which the store and the servers know each other, from the servers file's folder; ``csd-emu
            store`` makes it, and every server has a copy.
    """

    address: IPv4Address = Field(default=IPv4Address("127.0.0.1"), strict=False)
    port: int = Field(default=STORE_PORT, ge=1024, le=65535)
    key: Annotated[str, Field(min_length=1)] = "store.pem"

    @property
    def key_path(self) -> Path:
        """Where the key is; absolute in what `read_servers` returns."""
        return Path(self.key)


class MembershipSection(Config):
    """When servers go on without each other.

    Attributes:
        min: with fewer servers than that nobody trains: those that are there wait.
        wait: for so long they wait, at the beginning and whenever fewer than `min` are there; then the run ends.
        silence: a server of which nothing was heard for so long is lost.
    """

    min: int = Field(default=1, ge=1, le=MAX_SERVERS)
    wait: Seconds = Field(default="10 min")  # type: ignore[assignment]
    silence: Seconds = Field(default="10 s")  # type: ignore[assignment]

    @field_validator("wait", "silence")
    @classmethod
    def _at_least_a_second(cls, value: float) -> float:
        if value < 1:
            raise ValueError("must be 1 s or more")
        return value


class ServersConfig(Config):
    """Servers that train together.

    Attributes:
        name: of the whole.
        servers: groups of them.
        link: of each to the others.
        reduce_every: after so many steps they add up: 1 sums every step's gradients, more take the mean of weights that
            each server has stepped by itself (local SGD, Stich 2019).
        network: the network that the servers' own traffic may use, which nobody encrypts: it is bound to the address
            that a server has there.
        store: where they find each other.
        membership: when they go on without each other.
        racks: that they stand in, for simulations; null: one switch that never blocks.
        failures: what fails, for simulations; null: nothing.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    servers: list[ServerGroupSection] = Field(min_length=1)
    link: ServerLink = ServerLink()
    reduce_every: int = Field(default=1, ge=1)
    network: IPv4Network = Field(default=IPv4Network("127.0.0.0/8"), strict=False)
    store: StoreSection = StoreSection()
    membership: MembershipSection = MembershipSection()
    racks: RacksSection | None = None
    failures: FailuresSection | None = None

    def rules(self) -> Mapping[str, object]:
        """Return the rules of servers and of their network."""
        twice = sorted(name for name, count in Counter(self.names).items() if count > 1)
        given = [*(group.address for group in self.servers if group.address is not None), self.store.address]
        outside = [str(address) for address in given if address not in self.network]
        return {
            f"servers: {', '.join(twice)} is there twice; name every server once": twice,
            f"servers: more than {MAX_SERVERS}": len(self.names) > MAX_SERVERS,
            f"network: {', '.join(outside)} is outside of {self.network}; the servers' traffic must stay in it": (
                outside
            ),
            f"membership.min: {self.membership.min} servers, and there are {len(self.names)}": (
                self.membership.min > len(self.names)
            ),
        }

    @property
    def names(self) -> list[str]:
        """All servers' names, in the order of the file."""
        return [name for group in self.servers for name in group.names]

    def group_of(self, server: str) -> ServerGroupSection:
        """Return the group of a server; raises `KeyError` if it is in none."""
        for group in self.servers:
            if server in group.names:
                return group
        raise KeyError(server)


def read_servers(path: Path) -> ServersConfig:
    """Read a servers file; the store's key has an absolute path in what is returned.

    Raises:
        ConfigurationError: it cannot be read, or breaks a rule.
    """
    config = load_config(path, ServersConfig)
    key = str((path.parent / config.store.key).absolute())
    return config.model_copy(update={"store": config.store.model_copy(update={"key": key})})

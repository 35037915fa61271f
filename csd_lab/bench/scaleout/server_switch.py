"""Servers in network namespaces, each behind a link of its own on a switch that never blocks."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from csd_emu.engines.shaping.namespace_shaper import can_make_namespaces
from firmware_agent.common.errors import EnvironmentUnfit

INTERFACE = "eth0"
MTU_BYTES = 1500
# A bucket holds what a link carries in this time, but no less than a few segments as the kernel hands them on.
_BURST_SECONDS, _LEAST_BURST_BYTES = 0.002, 128 << 10
_QUEUE_SECONDS = 0.2


@dataclass(frozen=True)
class ServerSwitch:
    """Namespaces that are there.

    Attributes:
        name: of the switch's namespace; the servers' are this and their number.
        servers: how many.
    """

    name: str
    servers: int

    @property
    def places(self) -> list[list[str]]:
        """The beginning of a command line in each server's namespace."""
        return [["ip", "netns", "exec", f"{self.name}-{number}"] for number in range(self.servers)]

    def shape(self, bytes_per_second: float) -> None:
        """Give each server so much in each direction, Ethernet's and TCP's headers included."""
        burst = max(_LEAST_BURST_BYTES, round(bytes_per_second * _BURST_SECONDS))
        bucket = f"tbf rate {round(bytes_per_second * 8)}bit burst {burst} latency {_QUEUE_SECONDS * 1e3:.0f}ms".split()
        for number in range(self.servers):
            for namespace, device in ((f"{self.name}-{number}", INTERFACE), (self.name, f"port{number}")):
                _call("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *bucket)


@contextlib.contextmanager
def server_switch(servers: int) -> Iterator[ServerSwitch]:
    """Make so many servers on a switch, and remove them whatever happens; links have no limit until they are shaped.

    Raises:
        EnvironmentUnfit: this process may not, or a command failed.
    """
    if not can_make_namespaces():
        raise EnvironmentUnfit("network namespaces: run as root with iproute2, NET_ADMIN and SYS_ADMIN")
    switch = ServerSwitch(f"csd-ring-{os.getpid()}", servers)
    names = [switch.name, *(f"{switch.name}-{number}" for number in range(servers))]
    made = []
    try:
        for name in names:
            _call("ip", "netns", "add", name)
            made.append(name)
        _call("ip", "-n", switch.name, "link", "add", "switch", "type", "bridge")
        _call("ip", "-n", switch.name, "link", "set", "switch", "up")
        for number, name in enumerate(names[1:]):
            port, mtu = f"port{number}", ["mtu", str(MTU_BYTES)]
            peer = ["peer", "name", INTERFACE, *mtu, "netns", name]
            _call("ip", "-n", switch.name, "link", "add", port, *mtu, "type", "veth", *peer)
            _call("ip", "-n", switch.name, "link", "set", port, "master", "switch", "up")
            _call("ip", "-n", name, "addr", "add", f"198.19.255.{number + 1}/24", "dev", INTERFACE)
            _call("ip", "-n", name, "link", "set", INTERFACE, "up")
            _call("ip", "-n", name, "link", "set", "lo", "up")
        yield switch
    finally:
        for name in reversed(made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentUnfit(f"{' '.join(command)}: {_last(done.stderr.splitlines())}; run as root with iproute2")


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "it failed"

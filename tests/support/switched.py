"""Servers in network namespaces of this machine, joined by a switch: links with a token bucket, which can be cut."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType

from csd_emu.engines.shaping.namespace_shaper import NAMESPACES, run_command
from csd_emu.engines.shaping.shaper import bucket_arguments

# Out of 198.18.0.0/15, which is set aside for measurements (RFC 2544); nothing outside of the namespaces has it.
NETWORK = "198.19.0.0/24"
_PREFIX = NETWORK.rpartition(".")[0]


class Switch:
    """A bridge in a namespace of its own, and a namespace behind it for each machine; a context manager.

    Needs root and iproute2 (see `csd_emu.engines.shaping.namespace_shaper.can_make_namespaces`). Each machine's link
    has a token bucket at both ends, as an array's shaped link has.
    """

    def __init__(self, machines: Sequence[str], bytes_per_second: float) -> None:
        """Prepare; `machines` are named in at most seven characters."""
        self._machines, self._bucket = list(machines), bucket_arguments(bytes_per_second)
        self._mark = f"csdsw{os.getpid():x}"

    @property
    def address(self) -> str:
        """Of the switch itself, where a store may be."""
        return f"{_PREFIX}.1"

    def address_of(self, machine: str) -> str:
        """Return a machine's address."""
        return f"{_PREFIX}.{2 + self._machines.index(machine)}"

    def command(self, machine: str | None, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one on a machine, or for None on the switch; `ip` makes way for it."""
        return ["ip", "netns", "exec", self._name(machine), *command]

    def cut(self, machine: str) -> None:
        """Take a machine's link down at the switch: no packet comes through, and nobody is told."""
        self._on(None, "link", "set", _port(machine), "down")

    def mend(self, machine: str) -> None:
        """Bring the link up again."""
        self._on(None, "link", "set", _port(machine), "up")

    def __enter__(self) -> Switch:
        try:
            self._make(None)
            self._on(None, "link", "add", "switch", "type", "bridge")
            self._on(None, "addr", "add", f"{self.address}/24", "dev", "switch")
            self._on(None, "link", "set", "switch", "up")
            for machine in self._machines:
                self._join(machine)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _join(self, machine: str) -> None:
        self._make(machine)
        peer = ["peer", "name", "eth0", "netns", self._name(machine)]
        self._on(None, "link", "add", _port(machine), "type", "veth", *peer)
        self._on(None, "link", "set", _port(machine), "master", "switch", "up")
        self._on(machine, "addr", "add", f"{self.address_of(machine)}/24", "dev", "eth0")
        self._on(machine, "link", "set", "eth0", "up")
        for where, end in ((None, _port(machine)), (machine, "eth0")):
            _run("tc", "-n", self._name(where), "qdisc", "add", "dev", end, "root", *self._bucket)

    def _make(self, machine: str | None) -> None:
        _run("ip", "netns", "add", self._name(machine))
        self._on(machine, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for machine in (*self._machines, None):
            if (NAMESPACES / self._name(machine)).exists():
                _run("ip", "netns", "del", self._name(machine))

    def _name(self, machine: str | None) -> str:
        return self._mark if machine is None else f"{self._mark}-{machine}"

    def _on(self, machine: str | None, *arguments: str) -> None:
        _run("ip", "-n", self._name(machine), *arguments)


def _port(machine: str) -> str:
    return f"to-{machine}"  # ip takes a short name for one of its own words


def _run(*command: str) -> None:
    done = run_command(command)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"

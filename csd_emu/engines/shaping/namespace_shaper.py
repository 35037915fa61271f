"""A link shaped by the kernel: drives run in a network namespace, behind a virtual Ethernet with a token bucket."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from pathlib import Path

from csd_emu.engines.shaping.shaper import MTU_BYTES, Shape, Shaper, bucket_arguments
from firmware_agent.common.errors import EnvironmentUnfit

NAMESPACES = Path("/run/netns")
# What passes the virtual Ethernet takes about so long by itself; a link that is to be slower needs the relay.
LONGEST_LATENCY_SECONDS = 0.001
_NET_ADMIN, _SYS_ADMIN = 1 << 12, 1 << 21
_REMEDY = "run as root with iproute2 installed and the capabilities NET_ADMIN and SYS_ADMIN, or set link.shaped: relay"

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a command and returns how it ended."""


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of this machine."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def can_make_namespaces(status: Path = Path("/proc/self/status")) -> bool:
    """Return whether this process may make network namespaces, and has the tools for it."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    try:
        lines = status.read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    rights = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return rights & (_NET_ADMIN | _SYS_ADMIN) == _NET_ADMIN | _SYS_ADMIN


class NamespacedLink(Shaper):
    """One network namespace: all drives of the array are in it, so they share its only way out."""

    def __init__(
        self, array: str, shape: Shape | None = None, run: Run = run_command, namespaces: Path = NAMESPACES
    ) -> None:
        """Prepare for the array of that name; without a shape it can be closed alone."""
        self._array, self._shape, self._run, self._namespaces = array, shape, run, namespaces
        self._name = f"csd-emu-{array}"
        digest = hashlib.sha256(array.encode()).digest()
        self._here, self._there = (f"csd{digest.hex()[:9]}{end}" for end in "hd")  # at most 15 characters
        # A network of two addresses out of 198.18.0.0/15, which is set aside for measurements (RFC 2544).
        number = int.from_bytes(digest[:2], "big") % (1 << 15) * 4 + (198 << 24) + (18 << 16)
        # The loopback of this machine is out of the drives' reach.
        self.dial_address = self.listen_address = str(IPv4Address(number + 1))
        self._drive_address = str(IPv4Address(number + 2))
        self._lock = threading.Lock()

    def command(self, agent: Sequence[str]) -> list[str]:
        """Return the command that runs an agent in the namespace; `ip` makes way for it."""
        return ["ip", "netns", "exec", self._name, *agent]

    def open(self) -> None:
        """Make namespace, Ethernet and buckets (see `Shaper.open`)."""
        with self._lock:
            if (self._namespaces / self._name).exists() or self._shape is None:
                return
            bucket = _bucket(self._shape)
            try:
                self._call("ip", "netns", "add", self._name)
                mtu = ["mtu", str(MTU_BYTES)]
                peer = ["peer", "name", self._there, *mtu, "netns", self._name]
                self._call("ip", "link", "add", self._here, *mtu, "type", "veth", *peer)
                self._call("ip", "addr", "add", f"{self.dial_address}/30", "dev", self._here)
                self._call("ip", "-n", self._name, "addr", "add", f"{self._drive_address}/30", "dev", self._there)
                self._call("ip", "link", "set", self._here, "up")
                self._call("ip", "-n", self._name, "link", "set", self._there, "up")
                self._set("add", bucket)
            except EnvironmentUnfit:
                self.close()
                raise

    def change(self, shape: Shape) -> None:
        """Give both buckets another rate (see `Shaper.change`)."""
        self._set("change", _bucket(shape))

    def check(self) -> None:
        """See `Shaper.check`."""
        if not (self._namespaces / self._name).exists():
            raise EnvironmentUnfit(
                f"array {self._array!r}: the network namespace {self._name} of its shaped link has gone, so no drive "
                f"reaches the host; csd-emu clean {self._array}, then start it again"
            )

    def close(self) -> None:
        """Remove the namespace; the virtual Ethernet goes with it."""
        if (self._namespaces / self._name).exists():
            self._call("ip", "link", "del", self._here, check=False)  # at once: a namespace in use outlives its name
            self._call("ip", "netns", "del", self._name)

    def _set(self, verb: str, bucket: Sequence[str]) -> None:
        self._call("tc", "qdisc", verb, "dev", self._here, "root", *bucket)
        self._call("tc", "-n", self._name, "qdisc", verb, "dev", self._there, "root", *bucket)

    def _call(self, *command: str, check: bool = True) -> None:
        try:
            done = self._run(command)
        except OSError as error:
            raise EnvironmentUnfit(f"{command[0]} cannot be run ({error}); {_REMEDY}") from error
        if check and done.returncode != 0:
            said = done.stderr.strip() or f"exit code {done.returncode}"
            raise EnvironmentUnfit(f"array {self._array!r}: {' '.join(command)}: {said}; {_REMEDY}")


def _bucket(shape: Shape) -> list[str]:
    if shape.latency_seconds > LONGEST_LATENCY_SECONDS:
        raise EnvironmentUnfit(
            f"a network namespace gives a link no latency of {shape.latency_seconds} s, only a bandwidth; set "
            "link.shaped: relay, or a latency of at most 1 ms"
        )
    return bucket_arguments(shape.bytes_per_second)

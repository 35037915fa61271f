"""The drive's own throttles: `io.max` on reads from its namespace, `tbf` on what its network card sends.

They make the device wait, and waits follow wall time. So they are for wall-clock experiments and the `throttles` bench,
and never stack with a model that turns counted bytes into seconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from firmware_agent.common.errors import DeviceFailed
from firmware_agent.faults.competing_task import TRAINER_GROUP

# No table of routes names its interface.
LOOPBACK, _LOOPBACK_INTERFACE = "127.0.0.1", "lo"
ROUTES = Path("/proc/net/route")
# Tokens that the bucket holds, in seconds of the rate, as io.max has slices of 0.1 s: a rest longer than this is lost.
BUCKET_SECONDS = 0.1
# At least one full segment of generic segmentation offload, which tbf would otherwise have to cut up.
MIN_BUCKET_BYTES = 64 << 10
# More than a TCP socket keeps below itself, so that nothing is dropped.
QUEUE_BYTES = 4 << 20


class Throttle:
    """Limits on the agent's own reads and on all that the drive sends; each holds inside its block and no longer."""

    def __init__(
        self, group: Path | None, tc: str = "tc", routes: Path = ROUTES, number: Callable[[Path], str] | None = None
    ) -> None:
        """Take the delegated cgroup that has this process in its ``trainer`` (see `delegated_group`), or None.

        Without one the device may be a process on somebody's machine, whose network is not ours to limit either.
        """
        self._group, self._tc, self._routes = group, tc, routes
        self._number = number or block_number

    @contextlib.contextmanager
    def limit_reads(self, device: Path, bytes_per_second: int) -> Iterator[None]:
        """Limit what this process reads from the block device `device` by cgroup v2's `io.max`.

        Raises:
            DeviceFailed: there is no delegated cgroup with an `io` controller, or `device` is no block device.
        """
        group = self._own_group("limit its reads")
        name = self._number(device)
        limits = group / TRAINER_GROUP / "io.max"
        _write(group / "cgroup.subtree_control", "+io")
        _write(limits, f"{name} rbps={bytes_per_second}")
        try:
            yield
        finally:
            _write(limits, f"{name} rbps=max")

    @contextlib.contextmanager
    def limit_sends(self, host: str, bytes_per_second: int) -> Iterator[None]:
        """Limit what the network card towards `host` sends, Ethernet frames with their headers, by a token bucket.

        Raises:
            DeviceFailed: this device has no network of its own, no `tc` or no route, or `tc` refuses.
        """
        self._own_group("limit what it sends")
        card = self.card_towards(host)
        bucket = f"burst {bucket_bytes(bytes_per_second)} limit {QUEUE_BYTES}"
        # "add" fails where somebody has a queue discipline of their own: it is not ours to replace.
        self._run_tc(f"qdisc add dev {card} root tbf rate {8 * bytes_per_second}bit {bucket}")
        try:
            yield
        finally:
            self._run_tc(f"qdisc del dev {card} root")

    def card_towards(self, host: str) -> str:
        """Return the network card through which `host` (name or IPv4 address) is reached.

        Raises:
            DeviceFailed: there is no such host or no route to it.
        """
        if host == LOOPBACK:
            return _LOOPBACK_INTERFACE
        try:
            address = socket.inet_aton(socket.gethostbyname(host))
            card = find_card(address, self._routes.read_text(encoding="ascii"))
        except OSError as error:
            raise DeviceFailed(f"no route to {host} ({error}); give an address that the device can reach") from error
        if card is None:
            raise DeviceFailed(f"{self._routes} has no route to {host}; give an address that the device can reach")
        return card

    def _own_group(self, what: str) -> Path:
        if self._group is None:
            raise DeviceFailed(f"this device cannot {what}: its agent has no cgroup of its own; use qemu")
        return self._group

    def _run_tc(self, arguments: str) -> None:
        try:
            done = subprocess.run([self._tc, *arguments.split()], capture_output=True, text=True, check=False)
        except OSError as error:
            raise DeviceFailed(f"tc cannot be run ({error}); install iproute2 in the drive, or use qemu") from error
        if done.returncode != 0:
            raise DeviceFailed(
                f"tc {arguments}: {done.stderr.strip()}; remove another queue discipline from the card, "
                "give the agent the right to set one (CAP_NET_ADMIN), or use qemu"
            )


def block_number(device: Path) -> str:
    """Return ``major:minor`` of a block device, by which cgroups know it.

    Raises:
        DeviceFailed: it is none.
    """
    status = os.stat(device)
    if not stat.S_ISBLK(status.st_mode):
        raise DeviceFailed(f"{device} is no block device, io.max cannot limit reads from it; use qemu")
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="ascii")
    except OSError as error:
        raise DeviceFailed(
            f"reads cannot be limited by {file} ({error}); let the agent's service delegate io, or use qemu"
        ) from error


def bucket_bytes(bytes_per_second: int) -> int:
    """Return the burst of a token bucket of this rate: what it lets through at once after a rest."""
    return max(MIN_BUCKET_BYTES, int(bytes_per_second * BUCKET_SECONDS))


def find_card(address: bytes, table: str) -> str | None:
    """Return the interface of the most specific route to an IPv4 `address` (4 bytes, network order).

    Args:
        address: where to.
        table: text of ``/proc/net/route``: a heading, then name, destination, gateway, flags, three numbers and mask
            per line; addresses are hexadecimal words in the machine's byte order.
    """
    (word,) = struct.unpack("=I", address)
    routes = [line.split() for line in table.splitlines()[1:]]
    fitting = [fields for fields in routes if word & int(fields[7], 16) == int(fields[1], 16)]
    best = max(fitting, key=lambda fields: int(fields[7], 16).bit_count(), default=None)
    return None if best is None else best[0]

"""Cost of an all-reduce between servers: racks of servers, each behind an uplink. Numbers in, numbers out.

Every server has B bytes, and all get their sum. Servers hang on their rack's switch by links of bandwidth b with
latency l; a rack's switch hangs on a spine, which never blocks, by an uplink of bandwidth U. A ring of n servers, whose
ranks follow the racks, takes 2 (n - 1) steps, in each of which every server sends B / n to the next (Patarasuk and Yuan
2009). One of a rack's hops leaves it, so ``2 (n - 1) (B / n / min(b, U) + l)``.

The sums themselves cost nothing here: they are done while bytes come in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from csd_emu.perfmodel.sharing import check_numbers
from firmware_agent.common.errors import ConfigurationError


@dataclass(frozen=True)
class Fabric:
    """What lies between the servers.

    Attributes:
        link_bytes_per_second: of each server, in each direction.
        latency_seconds: of one transfer.
        uplink_bytes_per_second: of each rack, in each direction; infinite for a fabric that never blocks.
    """

    link_bytes_per_second: float
    latency_seconds: float
    uplink_bytes_per_second: float = math.inf

    def __post_init__(self) -> None:
        """Check the figures.

        Raises:
            ConfigurationError: a bandwidth is not positive, or the latency negative or not finite.
        """
        check_numbers("the servers' link", {"bandwidth": self.link_bytes_per_second}, {"latency": self.latency_seconds})
        if not self.uplink_bytes_per_second > 0:
            raise ConfigurationError(f"the racks' uplink has {self.uplink_bytes_per_second!r} B/s; it must be positive")


@dataclass(frozen=True)
class AllReduce:
    """One all-reduce.

    Attributes:
        hop_seconds: latencies, one after the other.
        link_seconds: bytes at the servers' own links.
        uplink_seconds: by how much longer the bytes take because uplinks are narrower.
        link_bytes: sent by all servers together; as many are received.
        uplink_bytes: of those, sent up out of all racks together.
    """

    hop_seconds: float = 0.0
    link_seconds: float = 0.0
    uplink_seconds: float = 0.0
    link_bytes: float = 0.0
    uplink_bytes: float = 0.0

    @property
    def seconds(self) -> float:
        """From when the last server is ready to when all have the sum."""
        return self.hop_seconds + self.link_seconds + self.uplink_seconds


def ring(
    size_bytes: float, racks: Sequence[int], fabric: Fabric, leaving: Callable[[int, int], int] | None = None
) -> AllReduce:
    """Return a ring whose ranks follow the racks.

    Args:
        size_bytes: B.
        racks: how many servers each has; empty ones do not count.
        fabric: what lies between them.
        leaving: returns how many hops leave a rack, of its servers and of all others; None for one.
    """
    used = [servers for servers in racks if servers]
    if (servers := sum(used)) < 2:
        return AllReduce()
    crossing = [leaving(own, servers - own) if leaving else 1 for own in used] if len(used) > 1 else [0]
    link, most = fabric.link_bytes_per_second, max(crossing)
    rate = min(link, fabric.uplink_bytes_per_second / most) if most else link
    hops, sent = 2 * (servers - 1), 2 * (servers - 1) / servers * size_bytes
    return AllReduce(
        hop_seconds=hops * fabric.latency_seconds,
        link_seconds=sent / link,
        uplink_seconds=sent / rate - sent / link,
        link_bytes=servers * sent,
        uplink_bytes=sum(crossing) * sent,
    )

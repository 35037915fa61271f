"""Cost of an all-reduce between servers: racks of servers, each behind an uplink. Numbers in, numbers out.

Every server has B bytes, and all get their sum. Servers hang on their rack's switch by links of bandwidth b with
latency l; a rack's switch hangs on a spine, which never blocks, by an uplink of bandwidth U. With n servers in r racks:

* ``ring``, ranks following the racks: 2 (n - 1) steps, in each of which every server sends B / n to the next (Patarasuk
  and Yuan 2009). One of a rack's hops leaves it, so ``2 (n - 1) (B / n / min(b, U) + l)``.
* ``scattered``: a ring whose neighbours are never of one rack, if that can be: the worst order of ranks. A rack of m
  servers sends min(m, n - m) transfers up at a time, which share the uplink.
* ``hierarchical``: reduce-scatter inside each rack, rings between racks of those that have the same part, all-gather
  inside: ``2 (m - 1) (B / m / b + l) + 2 (r - 1) (B / r / min(m b, U) + l)``; the largest rack sets the first term, the
  weakest way up the second.

The sums themselves cost nothing here: they are done while bytes come in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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


def ring(size_bytes: float, racks: Sequence[int], fabric: Fabric) -> AllReduce:
    """Return a ring whose ranks follow the racks; `racks` is how many servers each has, empty ones do not count."""
    return _ring(size_bytes, racks, fabric, lambda _own, _others: 1)


def scattered_ring(size_bytes: float, racks: Sequence[int], fabric: Fabric) -> AllReduce:
    """Return a ring in which as many hops as can be leave a rack."""
    return _ring(size_bytes, racks, fabric, min)


def hierarchical(size_bytes: float, racks: Sequence[int], fabric: Fabric) -> AllReduce:
    """Return one inside racks first, then between them, then inside again."""
    used = [servers for servers in racks if servers]
    if sum(used) < 2:
        return AllReduce()
    link, largest, count = fabric.link_bytes_per_second, max(used), len(used)
    inside = 2 * (largest - 1) / largest * size_bytes
    between = 2 * (count - 1) / count * size_bytes
    hops = 2 * (largest - 1) + 2 * (count - 1)
    free = min(used) * link
    return AllReduce(
        hop_seconds=hops * fabric.latency_seconds,
        link_seconds=inside / link + between / free,
        uplink_seconds=between / min(free, fabric.uplink_bytes_per_second) - between / free,
        link_bytes=sum(2 * (servers - 1) * size_bytes for servers in used) + count * between,
        uplink_bytes=count * between,
    )


ALGORITHMS: Mapping[str, Callable[[float, Sequence[int], Fabric], AllReduce]] = {
    "ring": ring,
    "scattered": scattered_ring,
    "hierarchical": hierarchical,
}


def _ring(size_bytes: float, racks: Sequence[int], fabric: Fabric, leaving: Callable[[int, int], int]) -> AllReduce:
    """Return a ring in which ``leaving(servers of a rack, servers of the others)`` hops leave each rack."""
    used = [servers for servers in racks if servers]
    servers = sum(used)
    if servers < 2:
        return AllReduce()
    crossing = [leaving(own, servers - own) for own in used] if len(used) > 1 else [0]
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

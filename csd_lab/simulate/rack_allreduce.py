"""All-reduces between servers in racks: a ring, the worst ring, and one inside racks first (see `perfmodel.allreduce`).

With m servers in a rack, n in all, in r racks:

* ``scattered``: a ring whose neighbours are never of one rack, if that can be: the worst order of ranks. A rack of m
  servers sends min(m, n - m) transfers up at a time, which share the uplink.
* ``hierarchical``: reduce-scatter inside each rack, rings between racks of those that have the same part, all-gather
  inside: ``2 (m - 1) (B / m / b + l) + 2 (r - 1) (B / r / min(m b, U) + l)``; the largest rack sets the first term, the
  weakest way up the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from csd_emu.perfmodel.allreduce import AllReduce, Fabric, ring


def scattered_ring(size_bytes: float, racks: Sequence[int], fabric: Fabric) -> AllReduce:
    """Return a ring in which as many hops as can be leave a rack."""
    return ring(size_bytes, racks, fabric, min)


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

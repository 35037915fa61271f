import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.perfmodel.allreduce import AllReduce, Fabric, ring
from csd_lab.simulate.rack_allreduce import ALGORITHMS, hierarchical, scattered_ring
from firmware_agent.common.errors import ConfigurationError

racks = st.lists(st.integers(0, 6), min_size=1, max_size=5)
sizes = st.floats(1, 1e9)
links = st.floats(1e6, 1e11)
latencies = st.floats(0, 1e-2)
names = st.sampled_from(sorted(ALGORITHMS))


def play_ring(size: float, order: list[int], fabric: Fabric) -> AllReduce:
    """A ring step by step, over servers that stand in the racks of `order`: transfers on an uplink share it equally."""
    count = len(order)
    hops = list(zip(order, order[1:] + order[:1], strict=True))
    up = {rack: sum(source == rack != target for source, target in hops) for rack in set(order)}
    down = {rack: sum(target == rack != source for source, target in hops) for rack in set(order)}
    seconds = link = crossed = sent = 0.0
    for _ in range(2 * (count - 1)):
        times = []
        for source, target in hops:
            shared = max(up[source], down[target]) if source != target else 0
            rate = min(fabric.link_bytes_per_second, fabric.uplink_bytes_per_second / shared if shared else math.inf)
            times.append(size / count / rate)
            sent += size / count
            crossed += size / count * (source != target)
        seconds += max(times) + fabric.latency_seconds
        link += size / count / fabric.link_bytes_per_second
    hops_seconds = 2 * (count - 1) * fabric.latency_seconds
    return AllReduce(hops_seconds, link, seconds - link - hops_seconds, sent, crossed)


def same(one: AllReduce, other: AllReduce) -> None:
    assert one.seconds == pytest.approx(other.seconds, rel=1e-9)
    assert one.link_bytes == pytest.approx(other.link_bytes, rel=1e-9)
    assert one.uplink_bytes == pytest.approx(other.uplink_bytes, rel=1e-9, abs=1e-6)


@given(size=sizes, racks=racks.filter(lambda own: sum(own) > 1), link=links, uplink=links, latency=latencies)
def test_a_ring_along_the_racks_is_one_played_step_by_step(
    size: float, racks: list[int], link: float, uplink: float, latency: float
) -> None:
    fabric = Fabric(link, latency, uplink)
    order = [number for number, servers in enumerate(racks) for _ in range(servers)]
    same(ring(size, racks, fabric), play_ring(size, order, fabric))


@given(size=sizes, count=st.integers(2, 5), servers=st.integers(1, 5), link=links, uplink=links, latency=latencies)
def test_a_scattered_ring_is_one_that_goes_from_rack_to_rack(
    size: float, count: int, servers: int, link: float, uplink: float, latency: float
) -> None:
    fabric = Fabric(link, latency, uplink)
    same(scattered_ring(size, [servers] * count, fabric), play_ring(size, list(range(count)) * servers, fabric))


@given(size=sizes, servers=st.integers(2, 40), link=links, latency=latencies)
def test_in_one_rack_all_are_the_textbook_ring(size: float, servers: int, link: float, latency: float) -> None:
    fabric = Fabric(link, latency, link / 7)
    want = 2 * (servers - 1) * (size / servers / link + latency)
    for algorithm in ALGORITHMS.values():
        found = algorithm(size, [servers], fabric)
        assert found.seconds == pytest.approx(want)
        assert found.link_bytes == pytest.approx(2 * (servers - 1) * size)
        assert found.uplink_bytes == found.uplink_seconds == 0


@given(name=names, size=sizes, racks=racks, link=links, latency=latencies, data=st.data())
def test_a_narrower_uplink_never_makes_it_faster(
    name: str, size: float, racks: list[int], link: float, latency: float, data: st.DataObject
) -> None:
    uplinks = sorted(data.draw(st.lists(links, min_size=2, max_size=4)), reverse=True)
    found = [ALGORITHMS[name](size, racks, Fabric(link, latency, uplink)) for uplink in [math.inf, *uplinks]]
    assert all(wide.seconds <= narrow.seconds * (1 + 1e-12) for wide, narrow in pairwise(found))
    assert len({each.link_bytes for each in found}) == len({each.uplink_bytes for each in found}) == 1


@given(size=sizes, racks=racks, link=links, uplink=links, latency=latencies)
def test_scattering_ranks_never_helps_and_every_byte_that_is_needed_crosses(
    size: float, racks: list[int], link: float, uplink: float, latency: float
) -> None:
    fabric = Fabric(link, latency, uplink)
    packed, scattered, tree = (each(size, racks, fabric) for each in (ring, scattered_ring, hierarchical))
    assert packed.seconds <= scattered.seconds * (1 + 1e-12)
    used = [servers for servers in racks if servers]
    if sum(used) > 1:
        # Bandwidth-optimal: nobody can have the sum of all after sending less (Patarasuk and Yuan 2009).
        assert packed.link_seconds >= 2 * (1 - 1 / sum(used)) * size / link * (1 - 1e-9)
        assert tree.hop_seconds <= packed.hop_seconds * (1 + 1e-12)
    if len(used) > 1:
        assert tree.uplink_bytes <= packed.uplink_bytes * (1 + 1e-9) <= scattered.uplink_bytes * (1 + 1e-9) ** 2


@given(name=names, racks=racks, link=links, latency=latencies)
def test_racks_in_another_order_and_empty_ones_change_nothing(
    name: str, racks: list[int], link: float, latency: float
) -> None:
    fabric = Fabric(link, latency, link / 3)
    algorithm = ALGORITHMS[name]
    assert algorithm(1e6, racks, fabric).seconds == pytest.approx(algorithm(1e6, [*racks[::-1], 0], fabric).seconds)


def test_nobody_and_one_alone_have_nothing_to_add_up() -> None:
    for algorithm in ALGORITHMS.values():
        assert algorithm(1e6, [0, 1], Fabric(1e9, 1e-3)) == algorithm(1e6, [], Fabric(1e9, 1e-3)) == AllReduce()


@pytest.mark.parametrize(
    ("figures", "words"),
    [((0, 0), "bandwidth is 0"), ((1, -1), "latency is -1"), ((1, 0, 0), "uplink has 0 B/s")],
)
def test_a_fabric_that_cannot_be_is_refused(figures: tuple[float, ...], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Fabric(*figures)


def test_between_racks_the_uplink_bounds_a_hierarchical_one() -> None:
    found = hierarchical(1200.0, [4, 4, 4], Fabric(100.0, 0.5, 50.0))
    inside, between = 2 * 3 / 4 * 1200, 2 * 2 / 3 * 1200
    assert found.seconds == pytest.approx(inside / 100 + between / 50 + (6 + 4) * 0.5)
    assert found.uplink_seconds == pytest.approx(between / 50 - between / 400)

"""Which drive goes on which hypervisor."""

import math

from hypothesis import given
from hypothesis import strategies as st

from csd_emu.engines.qemu.vm_scheduling import DRIVE, SHARED, Need, Offer, describe_shortage, place

MIB = 1 << 20
names = st.lists(st.sampled_from([f"rack-{number}" for number in range(6)]), min_size=1, max_size=6, unique=True)
sizes = st.none() | st.integers(0, 64 << 30).map(float)
some_offers = names.flatmap(
    lambda each: st.fixed_dictionaries(
        {name: st.builds(Offer, st.integers(1, 40), sizes, sizes, st.booleans()) for name in each}
    )
)
spreads = st.sampled_from(["fill", "even"])
counts = st.integers(0, 60)


def devices(count: int) -> list[str]:
    return [f"csd-{number:02d}" for number in range(count)]


def offer_for(drives: int, cores: int = 2, cores_bind: bool = False) -> Offer:
    """Memory for exactly so many drives."""
    return Offer(cores, SHARED.memory_bytes + drives * DRIVE.memory_bytes, None, cores_bind)


@given(some_offers, counts, spreads)
def test_every_device_has_one_place_with_room_or_there_is_none_anywhere(
    offers: dict[str, Offer], count: int, spread: str
) -> None:
    placement = place(devices(count), offers, spread)  # type: ignore[arg-type]
    assert sorted([*placement.where, *placement.unplaced]) == devices(count)
    for name, offer in offers.items():
        drives = len(placement.on(name))
        assert drives <= offer.room()
        if drives:
            for has, shared, each in (
                (offer.memory_bytes, SHARED.memory_bytes, DRIVE.memory_bytes),
                (offer.disk_bytes, SHARED.disk_bytes, DRIVE.disk_bytes),
            ):
                assert has is None or shared + drives * each <= has
        assert not offer.cores_bind or drives <= offer.cores
    if placement.unplaced:
        assert all(len(placement.on(name)) + 1 > offer.room() for name, offer in offers.items())


@given(some_offers, counts)
def test_even_leaves_no_two_hypervisors_with_room_whose_shares_differ_by_more_than_a_drive(
    offers: dict[str, Offer], count: int
) -> None:
    placement = place(devices(count), offers, "even")
    share = {name: len(placement.on(name)) / offer.cores for name, offer in offers.items()}
    for name, offer in offers.items():
        if len(placement.on(name)) + 1 <= offer.room():  # one more would have fit, so nobody has a drive too many
            assert all(share[other] - 1 / offers[other].cores <= share[name] + 1e-9 for other in offers if share[other])


@given(some_offers, counts)
def test_fill_gives_a_hypervisor_drives_only_when_the_ones_before_it_are_full(
    offers: dict[str, Offer], count: int
) -> None:
    placement = place(devices(count), offers, "fill")
    order = list(offers)
    for place_, name in enumerate(order):
        if placement.on(name):
            for before in order[:place_]:
                drives = len(placement.on(before))
                assert drives >= offers[before].cores or drives + 1 > offers[before].room()


@given(some_offers, counts, counts, spreads)
def test_those_that_run_stay_where_they_are(offers: dict[str, Offer], count: int, running: int, spread: str) -> None:
    name = next(iter(offers))
    there = dict.fromkeys(devices(min(running, count)), name)
    placement = place(devices(count), offers, spread, there)  # type: ignore[arg-type]
    assert {device: placement.where[device] for device in there} == there


def test_cores_are_shared_by_more_drives_than_there_are_unless_the_file_says_how_many() -> None:
    assert len(place(devices(36), {"local": Offer(2)}, "fill").on("local")) == 36
    assert place(devices(3), {"local": Offer(2, cores_bind=True)}, "fill").unplaced == ("csd-02",)


def test_what_is_left_over_is_shared_out_by_cores() -> None:
    placement = place(devices(9), {"small": Offer(1), "large": Offer(2)}, "fill")
    assert (len(placement.on("small")), len(placement.on("large"))) == (3, 6)
    assert placement.on("small")[0] == "csd-00"
    assert placement.on("large")[:2] == ["csd-01", "csd-02"]


def test_a_shortage_names_the_resource_and_how_much_is_missing() -> None:
    offers = {"rack-0": offer_for(2), "rack-1": offer_for(0), "rack-2": Offer(4, cores_bind=True)}
    said = describe_shortage(3, offers)
    assert "rack-0 has 939.5 MB of memory for 2 drives, 604.0 MB too little" in said
    assert "rack-1 has 536.9 MB of memory for 0 drives, 604.0 MB too little" in said
    assert "rack-2 has 4 cores for 4 drives, 3 too few" in said


@given(counts, counts)
def test_what_is_missing_is_enough(has: int, missing: int) -> None:
    offer = offer_for(has)
    assert offer.room() == has
    more = Offer(2, (offer.memory_bytes or 0) + missing * DRIVE.memory_bytes)
    assert more.room() == has + missing


def test_what_nobody_knows_sets_no_limit_and_what_is_there_already_takes_nothing() -> None:
    assert math.isinf(Offer(1).room())
    disk = 2 * DRIVE.disk_bytes
    assert Offer(1, None, disk).room() == 0
    assert Offer(1, None, disk, shared=Need(SHARED.memory_bytes, 0)).room() == 2

"""Drives that serve their host while they train: nothing asked changes nothing; what is asked costs time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.flash.flash_drive import FAIR, FlashDrive
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import HostLoad
from csd_emu.perfmodel.sharing import Link
from csd_emu.perfmodel.storage.array_storage import ArrayStorage
from csd_emu.perfmodel.storage.drive_service import DriveService
from csd_emu.perfmodel.storage.load_source import ScheduledLoad
from csd_emu.perfmodel.storage.served_drive import ServedDrive
from csd_emu.perfmodel.timeline import Activity
from csd_emu.profiles import Sourced, get_profile
from csd_emu.profiles.flash_geometry import FlashParameters
from csd_emu.util.node_names import HOST
from firmware_agent.common.errors import DeviceFailed

FLASH = FlashParameters(channels=2, dies_per_channel=2, blocks_per_plane=12, pages_per_block=16, over_provisioning=0.4)
PAGES, LINK, SERVER, NEWPORT = FLASH.namespace_pages, Link(1e9, 1e-5), get_profile("xeon-4108"), get_profile("newport")
WRITES = HostLoad(4096, PAGES, 0.0, iops=1500.0, seed=3)


def service(*loads: HostLoad, stops: bool = False, pages: int = PAGES, nvme: float = 4e9) -> DriveService:
    drive = FlashDrive(FLASH, FAIR, mapping=PageMapping(FLASH, pages, filled=pages <= PAGES))
    served = ServedDrive(drive, [ScheduledLoad(load, begin_step=2) for load in loads], 1e9)
    profiles = {"csd-00": replace(NEWPORT, nvme_bytes_per_second=Sourced(nvme, "drawn"))}
    return DriveService(ArrayStorage({"csd-00": served}), profiles, SERVER, stops)


def activity(device: str = "csd-00", read_bytes: int = 50_000, compute: float = 0.01) -> Activity:
    phases = {"forward": compute / 3, "backward": 2 * compute / 3}
    return Activity(device, 1000, read_bytes, 2, phases, 1000, 1e9, 4e-5, 5e8, 5e-5)


@given(read_bytes=st.integers(0, 10**6), compute=st.floats(0.001, 1), overlapped=st.booleans())
@settings(max_examples=15)
def test_without_loads_steps_are_what_they_were(read_bytes: int, compute: float, overlapped: bool) -> None:
    parts, served = [activity(read_bytes=read_bytes, compute=compute), activity(HOST), activity("csd-01")], service()
    for number in (1, 2, 3):
        assert served.begin_step(number) == {"csd-00": 0.0}
        assert served.load(parts[:1], LINK, number * 2.0, {}, overlapped) == (parts[:1], LINK)
        served.end(2.0, number * 2.0 + 2)
    assert set(served.waits.values()) <= {0.0}
    nobody = DriveService(ArrayStorage({}), {}, SERVER)
    assert nobody.load(parts, LINK, 0.0, {}, overlapped) == (parts, LINK)
    assert (nobody.begin_step(1), nobody.state(), nobody.take_figures("csd-00")) == ({}, {}, None)


def test_a_load_makes_reads_longer_from_its_step_on_and_says_what_that_cost() -> None:
    served, plain, now = service(WRITES), activity(), 0.0
    rates, waits = [], []
    for number in range(1, 7):
        rates.append(served.begin_step(number)["csd-00"])
        (part,), _ = served.load([plain], LINK, now, {"csd-00": 1.25}, False)
        waits.append(served.waits["csd-00"])
        assert part.read_seconds == pytest.approx(plain.read_seconds + waits[-1])
        assert part.phases == plain.phases
        now += 0.02
        served.end(0.02, now)
    assert (rates[0], waits[0]) == (0.0, 0.0)
    assert sum(waits[1:]) > 1e-4
    assert min(rates[1:]) > 5e6  # of 1500 pages a second, twice
    figures = served.take_figures("csd-00")
    assert figures is not None
    alone = 6 * (0.01 / 1.25 + plain.read_seconds)
    assert figures.training_share == pytest.approx(alone / (6 * (0.01 + plain.read_seconds) + sum(waits)))
    assert figures.writes > 100


@given(nvme=st.floats(1e6, 4e9))
@settings(max_examples=10)
def test_messages_keep_half_of_a_link_that_the_hosts_data_cross(nvme: float) -> None:
    served, part = service(WRITES, nvme=nvme), activity(read_bytes=0)
    rate = served.begin_step(2)["csd-00"] / 2
    (loaded,), link = served.load([part], LINK, 0.0, {}, False)
    assert loaded.link_bytes_per_second == min(part.link_bytes_per_second, max(nvme - rate, nvme / 2))
    assert link == LINK  # far from what the server's lanes carry


@pytest.mark.parametrize("stops", [False, True])
def test_a_drive_that_is_full_ends_the_run_only_if_asked(stops: bool) -> None:
    served = service(stops=stops, pages=2 * PAGES)
    assert served.write({"csd-00": PAGES * 4096 // 2}, 0.0) == []
    served.check_full()
    assert served.write({"csd-00": PAGES * 4096}, 5.0) == ["csd-00"]
    if not stops:
        served.check_full()
        return
    with pytest.raises(DeviceFailed, match=r"csd-00: the flash is full, .* set on_full: continue"):
        served.check_full()


@pytest.mark.parametrize("taken", [True, False])
def test_what_goes_on_from_a_state_is_the_same_to_the_bit_but_for_figures_not_taken(taken: bool) -> None:
    served, found = service(WRITES), []
    for number in range(1, 9):
        if number == 4:
            if taken:
                served.take_figures("csd-00")
            state = {name: np.array(array) for name, array in served.state().items()}
        found.append(step(served, number))
    again = service(WRITES)
    again.restore(state)
    assert [step(again, number) for number in range(4, 9)] == found[3:]
    figures, whole = again.take_figures("csd-00"), served.take_figures("csd-00")
    assert figures is not None
    assert whole is not None
    assert (figures == whole) == taken
    assert (figures.seconds, whole.seconds) == pytest.approx((0.1, 0.1 if taken else 0.18))


def test_what_a_step_did_not_wait_for_is_no_wait_of_the_next_but_writes_are() -> None:
    waits = []
    for size in (0, 2_000_000):
        served = service()
        served.begin_step(1)
        served.load([activity(read_bytes=10**6)], LINK, 0.0, {}, False)
        served.end(1e-4, 1e-4)  # far from done with reading
        assert served.storage.drives["csd-00"].now_ns > 1_000_000
        again = service()
        again.restore({name: np.array(array) for name, array in served.state().items()})
        for each in (served, again):
            each.write({"csd-00": size} if size else {}, 1e-4)
            each.begin_step(2)
            each.load([activity()], LINK, 1e-4, {}, False)
        assert again.waits == served.waits
        waits.append(served.waits["csd-00"])
    assert waits[0] < 1e-4
    assert waits[1] > 1e-3


def step(served: DriveService, number: int) -> tuple[object, ...]:
    now = number * 0.02
    rates = served.begin_step(number)
    parts, _ = served.load([activity()], LINK, now, {}, False)
    served.end(0.02, now + 0.02)
    return rates, parts, dict(served.waits)

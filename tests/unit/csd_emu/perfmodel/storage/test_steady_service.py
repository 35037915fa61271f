"""What a drive's loads cost its reads, tried before a run: as a run's own steps find it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_emu.perfmodel.flash.flash_drive import FAIR, FlashDrive
from csd_emu.perfmodel.flash.flash_parameters import FlashParameters
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import HostLoad
from csd_emu.perfmodel.sharing import Link
from csd_emu.perfmodel.storage.array_storage import ArrayStorage
from csd_emu.perfmodel.storage.drive_service import DRAM_PASSES, DriveService
from csd_emu.perfmodel.storage.load_source import ScheduledLoad
from csd_emu.perfmodel.storage.served_drive import ServedDrive
from csd_emu.perfmodel.storage.steady_service import SteadyService, rising
from csd_emu.perfmodel.timeline import Activity
from csd_emu.profiles import Sourced, get_profile

FLASH = FlashParameters(channels=2, dies_per_channel=4, blocks_per_plane=12, pages_per_block=16, over_provisioning=0.4)
PAGES, LINK, SERVER, NEWPORT = FLASH.namespace_pages, Link(1e9, 1e-5), get_profile("xeon-4108"), get_profile("newport")


def service(*loads: HostLoad, nvme: float = 4e9) -> DriveService:
    drive = FlashDrive(FLASH, FAIR, mapping=PageMapping(FLASH, PAGES).age(0))
    served = ServedDrive(drive, [ScheduledLoad(load) for load in loads], 1e9)
    profile = replace(NEWPORT, nvme_bytes_per_second=Sourced(nvme, "drawn"))
    return DriveService(ArrayStorage({"csd-00": served}), {"csd-00": profile}, SERVER)


def reading(size: int) -> Activity:
    return Activity("csd-00", 0, size, 1, {}, 0, 1e9, 4e-5, 5e8, 5e-5)


@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=7))
def test_what_never_falls_has_the_same_sum_and_is_nearest(values: list[float]) -> None:
    given_values = np.array(values)
    found = rising(given_values)
    assert np.all(np.diff(found) >= -1e-9)
    assert found.sum() == pytest.approx(given_values.sum(), abs=1e-6)
    assert rising(found) == pytest.approx(found)
    assert rising(np.sort(given_values)) == pytest.approx(np.sort(given_values))
    # The nearest point of a cone is orthogonal to what is left over.
    assert (given_values - found) @ found == pytest.approx(0.0, abs=1e-6)


def test_drives_that_serve_nobody_wait_for_nothing() -> None:
    steady = SteadyService(service())
    work = steady.try_work([reading(size) for size in (100, 5000, 10**6)], LINK)
    assert steady.traffic == {"csd-00": 0.0}
    assert work.wait_seconds.tolist() == [0.0] * 3
    assert (work.link_bytes_per_second, work.host_link) == (5e8, LINK)


@pytest.mark.parametrize(("read_share", "iops"), [(1.0, 20_000.0), (0.7, 3000.0)])
def test_waits_are_those_of_a_runs_steps_within_three_tenths(read_share: float, iops: float) -> None:
    load, sizes = HostLoad(4096, PAGES, read_share, iops=iops, seed=3), (65_536, 300_000)
    tried = SteadyService(service(load)).try_work([reading(size) for size in sizes], LINK)
    found = [mean_wait(service(load), reading(size)) for size in sizes]
    assert tried.wait_seconds == pytest.approx(found, rel=0.3)
    assert min(found) > 1e-5


def mean_wait(served: DriveService, part: Activity) -> float:
    now, waits = 0.0, []
    for number in range(1, 81):
        served.begin_step(number)
        served.load([part], LINK, now, {}, False)
        waits.append(served.waits["csd-00"])
        now += 0.01 + waits[-1]
        served.end(0.01, now)
    return float(np.mean(waits))


@given(nvme=st.floats(1e7, 4e9))
@settings(max_examples=10)
def test_the_hosts_data_take_of_the_dram_and_of_the_link(nvme: float) -> None:
    load = HostLoad(4096, PAGES, iops=8000.0, poisson=False)
    steady = SteadyService(service(load, nvme=nvme))
    rate = steady.traffic["csd-00"] / DRAM_PASSES.value
    assert rate == pytest.approx(8000 * 4096, rel=0.01)
    work = steady.try_work([reading(100)], LINK)
    assert work.link_bytes_per_second == pytest.approx(min(5e8, max(nvme - rate, nvme / 2)))

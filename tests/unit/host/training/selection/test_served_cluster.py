"""Kinds of a planner's cluster whose drives serve their host: other kinds, slower, and left out where that is best."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.flash.flash_drive import FAIR, FlashDrive
from csd_emu.perfmodel.flash.page_mapping import PageMapping
from csd_emu.perfmodel.host_load import HostLoad
from csd_emu.perfmodel.storage.array_storage import ArrayStorage
from csd_emu.perfmodel.storage.drive_service import DRAM_PASSES, DriveService
from csd_emu.perfmodel.storage.load_source import ScheduledLoad
from csd_emu.perfmodel.storage.served_drive import ServedDrive
from csd_emu.perfmodel.timeline import Activity, Link
from csd_emu.profiles import Sourced, get_profile
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.flash_geometry import FlashParameters
from csd_emu.util.config_files import parse_config
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.config.preference import parse_preference
from host.core.device_time import beside_traffic, gradient_seconds
from host.policies.selection.cluster import Cluster
from host.policies.selection.planner import Planner
from host.policies.selection.selection_rules import SelectionRules
from host.training.selection.make_cluster import Exchanged, make_cluster
from host.training.selection.served_cluster import mean_waits, rising, serve_cluster
from host.training.sync_plan import Records, SyncPlan, make_plan

FLASH = FlashParameters(channels=2, dies_per_channel=4, blocks_per_plane=12, pages_per_block=16, over_provisioning=0.4)
PAGES, NEWPORT, LINK = FLASH.namespace_pages, get_profile("newport"), Link(1e9, 1e-5)
LOAD = HostLoad(4096, PAGES, iops=20_000.0)
ARRAY = {"name": "lab", "engine": "native", "core_model": "cycles", "devices": [{"profile": "newport", "count": 4}]}
JOB = {"model": "digits_cnn", "data": {"source": "digits"}, "mode": "sync"}


def planned(record_bytes: int, **job: object) -> tuple[Cluster, SyncPlan]:
    config, shipped = parse_config(ARRAY, ArrayConfig, "array.yaml"), ShippedCode("digits_cnn")
    store = CalibrationStore(Path("/nonexistent")).counting("cycles")
    parsed = parse_config(JOB | job, JobConfig, "job.yaml")
    plan = make_plan(config, parsed, shipped, (1, 8, 8), store, Records((0,) * 4, 2000, record_bytes))
    return make_cluster(config, plan, Exchanged(40_000, 40_000, record_bytes)), plan


def service(loads: dict[str, list[HostLoad]], nvme: float = 4e9) -> DriveService:
    drives = {
        name: ServedDrive(
            FlashDrive(FLASH, FAIR, mapping=PageMapping(FLASH, PAGES).age(0)),
            [ScheduledLoad(load) for load in own],
            1e9,
        )
        for name, own in loads.items()
    }
    profile = replace(NEWPORT, nvme_bytes_per_second=Sourced(nvme, "drawn"))
    return DriveService(ArrayStorage(drives), dict.fromkeys(drives, profile), get_profile("xeon-4108"))


def loads(*own: list[HostLoad]) -> dict[str, list[HostLoad]]:
    return {f"csd-0{number}": each for number, each in enumerate(own)}


def mean_wait(served: DriveService, part: Activity) -> float:
    """Of the steps of a run."""
    now, waits = 0.0, []
    for number in range(1, 81):
        served.begin_step(number)
        served.load([part], LINK, now, {}, False)
        waits.append(served.waits["csd-00"])
        now += 0.01 + waits[-1]
        served.end(0.01, now)
    return float(np.mean(waits))


@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=7))
def test_what_never_falls_has_the_same_sum_and_is_nearest(values: list[float]) -> None:
    drawn = np.array(values)
    found = rising(drawn)
    assert np.all(np.diff(found) >= -1e-9)
    assert found.sum() == pytest.approx(drawn.sum(), abs=1e-6)
    assert rising(np.sort(drawn)) == pytest.approx(np.sort(drawn))
    # The nearest point of a cone is orthogonal to what is left over.
    assert (drawn - found) @ found == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("read_share", "iops"), [(1.0, 20_000.0), (0.7, 3000.0)])
def test_waits_are_those_of_a_runs_steps_within_three_tenths(read_share: float, iops: float) -> None:
    own = loads([HostLoad(4096, PAGES, read_share, iops=iops, seed=3)])
    parts, tried = (
        [Activity("csd-00", 0, size, 1, {}, 0, 1e9, 4e-5, 5e8, 5e-5) for size in (65_536, 300_000)],
        service(own),
    )
    tried.begin_step(0)
    tried.storage.end(0.05)
    found = [mean_wait(service(own), part) for part in parts]
    assert mean_waits(parts, LINK, tried)[0] == pytest.approx(found, rel=0.3)
    assert min(found) > 1e-5


def test_a_cluster_without_host_io_is_itself() -> None:
    cluster, plan = planned(72)
    assert serve_cluster(cluster, None, plan) == (cluster, [])


def test_drives_that_serve_nobody_are_the_kind_that_they_were() -> None:
    cluster, plan = planned(72)
    served, notes = serve_cluster(cluster, service(loads([], [], [], [])), plan)
    assert notes == []
    assert [(kind.name, kind.nodes, kind.profile) for kind in served.kinds] == [
        (kind.name, kind.nodes, kind.profile) for kind in cluster.kinds
    ]
    (before,), (after,) = ([kind.speed for kind in each.kinds] for each in (cluster, served))
    assert before is not None
    assert after is not None
    assert after.step_seconds == pytest.approx(before.step_seconds, rel=1e-12)
    assert served.link == cluster.link


def test_drives_with_the_same_loads_are_a_kind_whatever_is_drawn_for_them() -> None:
    cluster, plan = planned(72)
    own: list[list[HostLoad]] = [[LOAD], [replace(LOAD, seed=5)], [], [replace(LOAD, iops=9000.0)]]
    served, notes = serve_cluster(cluster, service(loads(*own)), plan)
    assert [(kind.name, kind.nodes) for kind in served.kinds] == [
        ("newport", ("csd-02",)),
        ("newport beside load 1", ("csd-00", "csd-01")),
        ("newport beside load 2", ("csd-03",)),
    ]
    assert [note.count("beside load") for note in notes] == [2]
    assert serve_cluster(cluster, service(loads([LOAD], [LOAD], [LOAD], [LOAD])), plan)[0].counts == (4,)


def test_a_kinds_seconds_have_its_waits_and_what_dram_leaves_its_cores() -> None:
    cluster, plan = planned(10_000, tuner="none", batch_size=64)
    steady, nvme = replace(LOAD, poisson=False), 1.2e8
    served, (note,) = serve_cluster(cluster, service(loads([steady], [], [], []), nvme), plan)
    traffic = DRAM_PASSES.value * 20_000 * 4096
    idle, loaded = served.kinds
    assert idle.speed is not None
    assert loaded.speed is not None
    model = plan.expected["csd-00"]
    grown = gradient_seconds(beside_traffic(model, traffic), {64: 1}).total / gradient_seconds(model, {64: 1}).total
    wait = loaded.speed.seconds(64) - grown * idle.speed.seconds(64)
    assert grown > 1.0001
    assert 1e-5 < wait < 0.1
    assert f"its reads wait {wait * 1e3:.3g} ms" in note
    rate = loaded.profile.link_bytes_per_second
    assert (rate.value, rate.band) == (pytest.approx(6e7), None)  # half of the lanes
    assert idle.profile == replace(NEWPORT, link_bytes_per_second=idle.profile.link_bytes_per_second)


def test_a_drive_whose_reads_wait_for_long_is_left_out() -> None:
    cluster, plan = planned(10**6, tuner="none", batch_size=16)
    rules = SelectionRules(parse_preference("time"), batch_size=16)
    heavy = HostLoad(4096 * 8, PAGES, iops=7000.0)
    served, _ = serve_cluster(cluster, service(loads([heavy], [], [], [])), plan)
    seconds = [kind.speed.seconds(16) for kind in served.kinds if kind.speed is not None]
    assert seconds[1] > 1.5 * seconds[0]  # one of four costs more than it brings beyond 4/3
    assert Planner(cluster, rules, 10_000).decide().chosen.configuration == (4,)
    assert Planner(served, rules, 10_000).decide().chosen.configuration == (3, 0)


def test_the_planners_batches_are_smaller_where_drives_are_slower() -> None:
    cluster, plan = planned(10**5, tuner="hypertune", sync={"tuning": {"largest_batch": 64}})
    served, _ = serve_cluster(cluster, service(loads([replace(LOAD, block_bytes=16_384)], [], [], [])), plan)
    decided = Planner(served, SelectionRules(parse_preference("time")), 10_000).decide().chosen
    idle, loaded = decided.batches
    assert np.all(np.array(decided.configuration) > 0)
    assert loaded < idle

"""The cluster of a plan at the ends of the profiles' bands, beside tables and profiles that are moved themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csd_emu.config.array_file import ArrayConfig
from csd_emu.perfmodel.host_node import link_of
from csd_emu.profiles import get_profile
from csd_emu.profiles.calibration import CalibrationStore
from csd_emu.profiles.profile import End
from csd_emu.util.config_files import parse_config
from firmware_agent.common.shipped_code import ShippedCode
from host.config.job_file import JobConfig
from host.core.device_time import DeviceTime, find_cycles, find_models
from host.policies.batching.device_speeds import device_classes
from host.policies.selection.cluster import Cluster
from host.training.selection.make_cluster import Exchanged, make_cluster, move_cluster
from host.training.sync_plan import Records, SyncPlan, make_plan

STORE = CalibrationStore(Path("/nonexistent"))
SPEC, SHAPE = ShippedCode("digits_cnn"), (1, 8, 8)
UNKNOWN = ShippedCode("mobilenet_v2")
ENDS: tuple[End, ...] = ("low", "high")


def array(engine: str, core_model: str, trains: bool, **fields: Any) -> ArrayConfig:
    drives = [{"profile": "newport", "count": 2}, {"profile": "generic-a53"}]
    written = {"name": "lab", "engine": engine, "core_model": core_model, "host": {"trains": trains}, "devices": drives}
    return parse_config(written | fields, ArrayConfig, "array.yaml")


def moved(
    config: ArrayConfig, end: End, spec: ShippedCode = SPEC, wall: bool = False
) -> tuple[Cluster, Cluster, SyncPlan]:
    """The cluster, the same at an end, and the plan."""
    store = STORE.counting(config.core_model)
    job = parse_config({"model": spec.name, "data": {"source": "digits"}, "mode": "sync"}, JobConfig, "job.yaml")
    records = Records((0,) * len(config.list_nodes()), 100, 72)
    plan = make_plan(config, job, spec, SHAPE, None if wall else store, records)
    cluster = make_cluster(config, plan, Exchanged(40_000, 40_000, 72))
    profiles = {node.name: get_profile(node.profile) for node in config.list_nodes()}
    models: Mapping[str, Any] = {} if wall else find_models(config, spec, SHAPE, store)
    time = DeviceTime(profiles, models, find_cycles(config, spec, SHAPE, store))
    return cluster, move_cluster(cluster, [config], time, end), plan


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("core_model", ["instructions", "cycles"])
@pytest.mark.parametrize(("engine", "trains"), [("qemu", True), ("native", False), ("native", True)])
def test_computing_grows_as_tables_say_of_moved_profiles(engine: str, core_model: str, trains: bool, end: End) -> None:
    config = array(engine, core_model, trains)
    cluster, there, plan = moved(config, end)
    known = device_classes(config, STORE.counting(core_model).of(SPEC, SHAPE), plan.job.sync, end=end)
    for here, kind in zip(cluster.kinds, there.kinds, strict=True):
        node = kind.nodes[0]
        assert here.speed is not None
        own = (here.speed.step_seconds - here.encode_seconds) * kind.growth + kind.encode_seconds
        np.testing.assert_allclose(own, known[node].speed.step_seconds[: len(own)], rtol=0.02)
        assert kind.encode_seconds == pytest.approx(plan.expected[node].at(end).encode_seconds)
        assert kind.profile == get_profile(kind.profile.name).at(end)
    server = get_profile("xeon-4108").at(end)
    assert (there.host, there.link, there.sides) == (server, link_of(config.link, server), ())


@pytest.mark.parametrize("end", ENDS)
def test_seconds_of_the_wall_do_not_grow_and_a_configured_link_stays(end: End) -> None:
    config = array("native", "instructions", False, clock="wall", link={"bandwidth": "100 MB/s", "latency": "50 us"})
    cluster, there, _ = moved(config, end, wall=True)
    assert [kind.growth for kind in there.kinds] == [1.0, 1.0]
    assert there.link == cluster.link


@pytest.mark.parametrize(("end", "ratio"), [("low", 1.4 / 1.95), ("high", 3.6 / 1.95)])
def test_cycles_that_are_assumed_have_their_band_without_any_table(end: End, ratio: float) -> None:
    config = array("qemu", "cycles", False)
    cluster, there, _ = moved(config, end, UNKNOWN)
    assert [kind.speed for kind in cluster.kinds] == [None, None]
    for kind in there.kinds:
        before, after = (each.cycle_scale("forward", 0.0) for each in (get_profile(kind.profile.name), kind.profile))
        assert kind.growth == pytest.approx(ratio * after / before, rel=0.01)
